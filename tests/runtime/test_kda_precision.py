"""The closed form in float32 loses no more than the recurrence does: gates that close make no sum of it cancel."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.kda import kda, kda_states
from draftc.runtime.kda.block import decays
from draftc.runtime.visibility import View

LIMIT = 1e-6  # of the largest entry
NAMES = ("out", "q", "k", "v", "decay", "beta", "A_log", "dt_bias", "state")
VIEW = View(None, "kda_block", 0.0, None)
REFERENCE = View(None, "kda_recurrent", 0.0, None)
WIDE = {7: 24, 8: 24, 16: 12, 32: 6}  # blocks by rows: about as many summands for each


def inputs(blocks: int, rows: int, seed: int, heads: int = 8, dim: int = 16) -> list[Tensor]:
    """float32; A_log up to log 16, so that running sums of log decays reach hundreds where the gate has no bound."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    rate = (torch.rand(heads, generator=generator) * 15 + 1).log()
    rows_of = [draw(blocks, rows, heads, dim) for _ in range(4)]
    made = [*rows_of, draw(blocks, rows, heads), rate, draw(heads * dim) * 0.5, draw(blocks, heads, dim, dim)]
    return [x.requires_grad_() for x in made]


def errors(run, given: list[Tensor]) -> dict[str, float]:
    """Errors of output and gradients against the recurrence in float64, of the largest entry of each."""
    wide = [x.detach().double().requires_grad_() for x in given]
    pairs = zip(NAMES, measured(run, REFERENCE, wide), measured(run, VIEW, given), strict=True)
    return {name: float((a - b).abs().max() / a.abs().max()) for name, a, b in pairs if a.abs().max() > 0}


def measured(run, view: View, given: list[Tensor]) -> list[Tensor]:
    out = run(view, *given)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
    grads = torch.autograd.grad((out.double() * weight).sum(), given, allow_unused=True)
    return [out.detach().double(), *(torch.zeros(1) if grad is None else grad.double() for grad in grads)]


def largest(errors_of: list[dict[str, float]]) -> tuple[float, str]:
    return max((value, name) for found in errors_of for name, value in found.items())


@pytest.mark.parametrize("with_state", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("rows", WIDE)
def test_outputs_and_gradients_are_within_a_millionth_for_every_seed(rows: int, bound, with_state: bool) -> None:
    def run(view: View, *given: Tensor) -> Tensor:
        *rest, state = given
        return kda(*rest, state if with_state else None, view, bound)

    worst, name = largest([errors(run, inputs(WIDE[rows], rows, seed)) for seed in range(4)])
    assert worst < LIMIT, name


@pytest.mark.parametrize("bound", [None, -5.0])
def test_states_before_anchors_are_as_exact(bound) -> None:
    anchors = torch.tensor([[0, 1, 17, 40, 40], [3, 8, 32, 33, 39]])

    def run(view: View, _: Tensor, *given: Tensor) -> Tensor:
        return kda_states(*given, anchors, view, bound)

    worst, name = largest([errors(run, inputs(2, 40, seed)) for seed in range(4)])
    assert worst < LIMIT, name


def test_a_small_decay_after_large_ones_keeps_its_digits() -> None:
    """A difference of running sums near 1000 would be 1e-3 up to the rounding of 1000, which is 6e-5."""
    g = torch.full((8, 1), -300.0)
    g[5], g[6] = -1e-3, -2e-3
    levels, before, after = decays(g)
    upper, _ = levels[1]  # segments of four rows; rows 6 and 7 from the border between 5 and 6
    assert upper[1].flatten().tolist() == pytest.approx([0.998001998667, 0.0], abs=1e-7)
    _, lower = levels[2]  # rows 0 to 3 to the border between 3 and 4
    assert lower[0].flatten().tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0])
    torch.testing.assert_close(before, g.cumsum(0))
    torch.testing.assert_close(after, g.sum() - g.cumsum(0), atol=1e-3, rtol=0)
