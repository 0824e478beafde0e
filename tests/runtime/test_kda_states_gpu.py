"""States before anchors by kernels on a card: the recurrence's, with all gradients, to what the dtype allows."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.kda import kda_states
from draftc.runtime.visibility import View
from tests.runtime.cards import require_card
from tests.runtime.kda_inputs import NAMES, Hard, kda_inputs

pytestmark = pytest.mark.gpu
ROWS = 700
LIMITS = {torch.bfloat16: 6e-3, torch.float32: 5e-5}  # of a norm
# The first state is forgotten by a part before the first anchor; the gradient of A_log is a sum that cancels.
LOOSER = {"state": 10, "A_log": 3}


@pytest.fixture(autouse=True)
def _card() -> None:
    require_card(8)


def outcome(backend: str, inputs: list[Tensor], anchors: Tensor, bound: float | None) -> list[Tensor]:
    out = kda_states(*inputs, anchors, View(None, backend, 0.0, None), bound)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).cuda()
    return [out.detach(), *torch.autograd.grad(out, inputs, weight)]


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("backend", ["kda_triton", "kda_gluon"])
def test_states_are_the_recurrence_and_the_same_bits_each_time(backend, dtype, bound) -> None:
    kinds = [dtype] * 4 + [torch.float32] * 3
    made = kda_inputs(ROWS, Hard(common=0.5), True, batch=2, heads=4, dim=128)[1:]
    inputs = [x.detach().to(dtype).to(kind).cuda().requires_grad_() for x, kind in zip(made, kinds, strict=True)]
    exact = [x.detach().float().requires_grad_() for x in inputs]
    anchors = torch.randint(0, ROWS + 1, (2, 24), generator=torch.Generator().manual_seed(3))
    want, got = outcome("kda_recurrent", exact, anchors, bound), outcome(backend, inputs, anchors, bound)
    names = ("out", *NAMES[1:])
    found = {n: ((g.float() - w).norm() / w.norm()).item() for n, g, w in zip(names, got, want, strict=True)}
    assert not {name: error for name, error in found.items() if not error < LIMITS[dtype] * LOOSER.get(name, 1)}
    again = outcome(backend, inputs, anchors, bound)
    assert [name for name, a, b in zip(names, got, again, strict=True) if not torch.equal(a, b)] == []
