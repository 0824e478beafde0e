"""Attention on a CUDA card: flex forward and backward, fused sdpa, and how often flex compiles."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.attend import attend
from draftc.runtime.visibility import NEVER, Visibility

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

# Two dropped blocks in a row of 300 positions; a second row of padding whose blocks are dropped, all but one.
SIZE, BLOCKS, ROWS = 16, 20, 300


def batch(rows: int = ROWS, blocks: int = BLOCKS) -> Visibility:
    torch.manual_seed(0)
    anchors = torch.randint(0, rows, (2, blocks), device="cuda")
    anchors[0, 3:5] = -1
    anchors[1, 1:] = -1
    context = torch.arange(rows, device="cuda").repeat(2, 1)
    context[1, rows // 4 :] = NEVER
    return Visibility(anchors, context, SIZE)


def inputs(heads=4, groups=2, width=64, value_width=64, rows: int = ROWS, blocks: int = BLOCKS) -> list[Tensor]:
    torch.manual_seed(1)
    queries = blocks * SIZE
    shapes = (heads, queries, width), (groups, rows + queries, width), (groups, rows + queries, value_width)
    return [torch.randn(2, *shape, device="cuda", dtype=torch.float64) for shape in shapes]


def passed(backend: str, tensors: list[Tensor], dtype: torch.dtype, window, is_causal, asked=None, rows=ROWS):
    """Output and gradients of a fixed weighting of it, in float64."""
    leaves = [x.detach().clone().to(dtype).requires_grad_() for x in tensors]
    view = (asked or batch()).view(window, is_causal, rows, backend)
    out = attend(*leaves, view, scale=tensors[0].shape[-1] ** -0.5)
    torch.manual_seed(2)
    weights = torch.randn(out.shape, device="cuda", dtype=torch.float64).to(dtype)
    return [x.double() for x in (out.detach(), *torch.autograd.grad(out, leaves, weights))]


def relative_error(mine: list[Tensor], exact: list[Tensor]) -> float:
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(mine, exact, strict=True))


WIDTHS = [(4, 2, 64, 64), (4, 4, 192, 128), (4, 1, 128, 128), (2, 2, 96, 96), (2, 2, 72, 40), (2, 1, 16, 16)]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("heads", "groups", "width", "value_width"), WIDTHS)
@pytest.mark.parametrize("backend", ["flex", "sdpa"])
def test_bfloat16_is_near_the_exact_result(backend, heads, groups, width, value_width):
    tensors = inputs(heads, groups, width, value_width)
    exact = passed("eager", tensors, torch.float64, 40, False)
    mine = passed(backend, tensors, torch.bfloat16, 40, False)
    assert all(x.isfinite().all() for x in mine)
    assert relative_error(mine, exact) < 0.02


@pytest.mark.parametrize(("window", "is_causal"), [(None, False), (None, True), (40, False), (40, True)])
@pytest.mark.parametrize("backend", ["flex", "sdpa"])
def test_float32_gives_the_exact_gradients(backend, window, is_causal):
    exact = passed("eager", inputs(), torch.float64, window, is_causal)
    assert relative_error(passed(backend, inputs(), torch.float32, window, is_causal), exact) < 1e-5


@pytest.mark.parametrize(("width", "value_width"), [(192, 128), (256, 256), (72, 40)])
def test_float32_has_a_kernel_for_every_width(width, value_width):
    tensors = inputs(2, 2, width, value_width)
    exact = passed("eager", tensors, torch.float64, 40, False)
    assert relative_error(passed("flex", tensors, torch.float32, 40, False), exact) < 1e-5


def test_a_few_blocks_in_float32_have_a_kernel():
    tensors = inputs(8, 2, 128, 128, blocks=3)
    exact = passed("eager", tensors, torch.float64, None, False, batch(blocks=3))
    mine = passed("flex", tensors, torch.float32, None, False, batch(blocks=3))
    assert relative_error(mine, exact) < 1e-5


@pytest.mark.parametrize("backend", ["flex", "sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_queries_that_see_nothing_are_exactly_zero_and_pass_nothing(backend, dtype):
    out, q_gradient, k_gradient, v_gradient = passed(backend, inputs(), dtype, None, False)
    dead = ~batch().live
    assert (out.transpose(1, 2)[dead] == 0).all()
    assert (q_gradient.transpose(1, 2)[dead] == 0).all()
    unseen = torch.arange(ROWS // 4, ROWS, device="cuda")
    assert (k_gradient[1, :, unseen] == 0).all()
    assert (v_gradient[1, :, unseen] == 0).all()


@pytest.mark.parametrize("backend", ["flex", "sdpa", "eager"])
def test_a_batch_of_dropped_blocks_is_zero_with_zero_gradients(backend):
    nothing = Visibility(torch.full((2, BLOCKS), -1, device="cuda"), torch.full((2, ROWS), NEVER, device="cuda"), SIZE)
    assert all((x == 0).all() for x in passed(backend, inputs(), torch.bfloat16, None, False, nothing))


@pytest.mark.parametrize("backend", ["flex", "sdpa"])
@pytest.mark.parametrize(("window", "is_causal"), [(None, False), (None, True), (40, False)])
def test_a_decoding_step(backend, window, is_causal):
    rows = 777
    asked = Visibility(
        torch.full((2, 1), rows, device="cuda"), torch.arange(rows, device="cuda").repeat(2, 1), SIZE, everything=True
    )
    tensors = inputs(8, 2, 128, 128, rows, 1)
    scale = 128**-0.5
    with torch.no_grad():
        exact = attend(*tensors, asked.view(window, is_causal, rows, "eager"), scale=scale)
        narrow = [x.bfloat16() for x in tensors]
        mine = attend(*narrow, asked.view(window, is_causal, rows, backend), scale=scale).double()
    assert ((mine - exact).norm() / exact.norm()).item() < 0.01


def test_flex_compiles_twice_for_any_number_of_lengths():
    counters = torch._dynamo.utils.counters
    counters.clear()
    for rows, blocks in [(300, 20), (410, 20), (520, 31), (777, 9), (900, 40)]:
        asked = batch(rows, blocks)
        tensors = inputs(rows=rows, blocks=blocks)
        passed("flex", tensors, torch.bfloat16, 40, True, asked, rows)
    assert counters["stats"]["unique_graphs"] <= 3


def test_flex_runs_many_kinds_of_layers_in_one_process():
    exact = {}
    for window in (None, 8, 16, 24, 32, 40):
        for is_causal in (False, True):
            exact[window, is_causal] = passed("eager", inputs(), torch.float64, window, is_causal)[0]
    for (window, is_causal), expected in exact.items():
        out = passed("flex", inputs(), torch.bfloat16, window, is_causal)[0]
        assert ((out - expected).norm() / expected.norm()).item() < 0.02
