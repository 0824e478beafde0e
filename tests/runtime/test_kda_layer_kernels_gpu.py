"""The kernels around KDA's core on a card: the plain forms in float32 to what each dtype allows, every gradient."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.kda.layer import gated_norm, short_convolution
from draftc.runtime.memory import NoMemory
from draftc.runtime.visibility import View
from tests.runtime.cards import require_card

pytestmark = pytest.mark.gpu
EPS = 1e-5
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}  # of a norm
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def _card() -> None:
    require_card(8)


def view(backend: str) -> View:
    return View(None, backend, 0.0, None)


def convolution(backend: str):
    return lambda rows, weight: short_convolution(rows, weight, view(backend))


def norm(backend: str):
    return lambda out, gate, weight: gated_norm(out, gate, weight, EPS, view(backend))


def drawn(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(sum(map(sum, shapes)))
    return [torch.randn(*shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]


def outcome(function, inputs: list[Tensor]) -> list[Tensor]:
    made = function(*inputs)
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(2)).bfloat16().to(made)
    return [made.detach(), *torch.autograd.grad(made, inputs, weight)]


def errors(operation, inputs: list[Tensor]) -> list[float]:
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want, got = outcome(operation("kda_block"), exact), outcome(operation("kda_triton"), inputs)
    assert [x.dtype for x in got] == [inputs[0].dtype, *(x.dtype for x in inputs)]
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("taps", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("blocks", "rows", "channels"),
    [(65, 16, 4096), (300, 8, 512), (3, 1, 256), (9, 31, 300), (2, 19, 1000), (1, 3000, 520)],
)
def test_the_convolution_is_its_plain_form(blocks, rows, channels, taps, dtype):
    inputs = drawn(dtype, (blocks, rows, channels), (channels, taps))
    assert max(errors(convolution, inputs)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 96, 128, 256])
@pytest.mark.parametrize("blocks", [1, 300])
def test_the_gated_norm_is_its_plain_form(blocks, width, dtype):
    inputs = drawn(dtype, (blocks, 16, 9, width), (blocks, 16, 9, width), (width,))
    assert max(errors(norm, inputs)) < TOLERANCE[dtype]


def cases() -> dict[str, tuple]:
    return {
        "convolution": (convolution("kda_triton"), drawn(torch.bfloat16, (130, 16, 1024), (1024, 4))),
        "norm": (norm("kda_triton"), drawn(torch.bfloat16, (130, 16, 8, 128), (130, 16, 8, 128), (128,))),
    }


@pytest.mark.parametrize("operation", ["convolution", "norm"])
def test_the_same_bits_each_time_whatever_lay_in_memory(operation, monkeypatch):
    function, inputs = cases()[operation]
    want = outcome(function, inputs)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    poisoned = outcome(function, inputs)
    torch.use_deterministic_algorithms(False)
    for got in (poisoned, *(outcome(function, inputs) for _ in range(20))):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("operation", ["convolution", "norm"])
def test_compiled_checkpointed_and_strided_calls_give_the_same_bits(operation):
    function, inputs = cases()[operation]
    want = outcome(function, inputs)
    strided = [torch.stack([x, x], -1)[..., 0].detach().requires_grad_() for x in inputs]
    shifted = [torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x).detach().requires_grad_() for x in inputs]
    forms = {
        "compiled": (torch.compile(function, fullgraph=True), inputs),
        "checkpointed": (lambda *x: checkpoint(function, *x, use_reentrant=False), inputs),
        "strided": (function, strided),
        "off the border": (function, shifted),
    }
    for name, (form, given) in forms.items():
        assert all(torch.equal(a, b) for a, b in zip(outcome(form, given), want, strict=True)), name


@pytest.mark.parametrize("backend", ["kda_triton", "kda_gluon"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_on_kernels_is_the_layer_on_plain_operations(backend, compiled):
    torch.manual_seed(5)
    layer = DeltaAttention(256, 4, 128, 4, -5.0, False, 1e-6, 16).cuda()
    wide = layer_outcome(layer, "kda_block", torch.float32, False)
    narrow = layer_outcome(layer.bfloat16(), backend, torch.bfloat16, compiled)
    found = {name: ((narrow[name].float() - x).norm() / x.norm()).item() for name, x in wide.items()}
    assert {name: error for name, error in found.items() if not error < 3e-2} == {}


def layer_outcome(layer: DeltaAttention, backend: str, dtype: torch.dtype, compiled: bool) -> dict[str, Tensor]:
    block = torch.randn(1, 256, 256, generator=torch.Generator().manual_seed(6)).to("cuda", dtype).requires_grad_()
    layer.zero_grad()
    function = torch.compile(layer, fullgraph=True) if compiled else layer
    made = function(block, block, None, None, view(backend), NoMemory())
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(7)).to(made)
    made.backward(weight)
    return {"made": made.detach(), "block": block.grad, **{n: p.grad.clone() for n, p in layer.named_parameters()}}
