"""fla-core's kernels give what the recurrence gives: outputs, gradients and states, in bfloat16 on a card."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.kda import fla, kda, kda_states
from draftc.runtime.visibility import View
from tests.runtime.kda_inputs import Hard, kda_inputs

pytestmark = pytest.mark.gpu
TOLERANCE = 1.5e-2  # of a norm; gradients of few parameters are sums that cancel
BOUNDS = [-5.0, None]


@pytest.fixture(autouse=True)
def _card() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA card")
    pytest.importorskip("fla")


def through(backend: str) -> View:
    return View(None, backend, 0.0, None)


def narrow(inputs: list[Tensor | None]) -> list[Tensor | None]:
    """Activations in bfloat16 on the card; gate parameters and the state in float32."""
    moved = [None if x is None else x.detach().cuda().bfloat16() for x in inputs[:5]]
    kept = [None if x is None else x.detach().cuda().bfloat16().float() for x in inputs[5:]]
    return [None if x is None else x.requires_grad_() for x in (*moved, *kept)]


def error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("rows", [8, 16, 31])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("limit", [65535, 5])
def test_chunks_are_the_recurrence(bound, rows, with_state, limit, monkeypatch) -> None:
    monkeypatch.setattr(fla, "GRID_LIMIT", limit)  # 5: two launches, of two sequences and of one
    inputs = narrow(kda_inputs(rows, Hard(common=0.5), with_state, dim=64))
    leaves = [x for x in inputs if x is not None]
    found = []
    for backend in ("kda_recurrent", "kda_fla"):
        out = kda(*inputs, through(backend), bound)
        weight = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out).to(out.dtype)
        found.append((out, *torch.autograd.grad((out * weight).sum(), leaves)))
    assert found[1][0].dtype == torch.bfloat16
    for number, (want, got) in enumerate(zip(*found, strict=True)):
        assert error(got, want) < (TOLERANCE if want.numel() > 1000 else 3 * TOLERANCE), number


@pytest.mark.parametrize("bound", BOUNDS)
def test_states_before_anchors_are_those_of_the_closed_form(bound) -> None:
    k, v, decay, beta, rate, bias, state = narrow(kda_inputs(300, Hard(), True, batch=2, dim=64))[1:]
    anchors = torch.tensor([[0, 5, 300, 17, 17, 190], [250, 1, 2, 3, 64, 128]], device="cuda")
    found = []
    for backend in ("kda_block", "kda_fla"):
        states = kda_states(k, v, decay, beta, rate, bias, state, anchors, through(backend), bound)
        leaves = [k, v, decay, beta, rate, bias, state]
        weight = torch.linspace(-1, 1, states.numel(), device="cuda").view_as(states)
        found.append((states, *torch.autograd.grad((states * weight).sum(), leaves)))
    assert found[1][0].dtype == torch.float32
    for number, (want, got) in enumerate(zip(*found, strict=True)):
        assert error(got, want) < (TOLERANCE if want.numel() > 1000 else 3 * TOLERANCE), number
