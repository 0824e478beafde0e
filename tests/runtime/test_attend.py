"""All backends of softmax attention give the same numbers and gradients, and exact zeros where nothing is seen."""

import ast
import inspect
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward

from draftc.runtime import attend as attend_package
from draftc.runtime.attend import attend, registry
from draftc.runtime.attend.registry import ATTEND_BACKENDS
from draftc.runtime.request import BackendRequest, Refusal
from draftc.runtime.sees import Keys, Queries, sees
from draftc.runtime.visibility import NEVER, Band, View, ViewError, Visibility, silence

RULES = [(None, False), (None, True), (3, False), (5, True)]
BLOCKS, SIZE, ROWS = 4, 4, 12


def training() -> Visibility:
    """Row 0 has one dropped block, row 1 is padding from its sixth row and has none left but the first."""
    anchors = torch.tensor([[2, 7, -1, 11], [5, -1, -1, -1]])
    context = torch.arange(ROWS).repeat(2, 1)
    context[1, 6:] = NEVER
    return Visibility(anchors, context, SIZE)


def all_dropped() -> Visibility:
    return Visibility(torch.full((2, BLOCKS), -1), torch.full((2, ROWS), NEVER), SIZE)


def inputs(heads: int = 4, groups: int = 2, width: int = 8, value_width: int = 6, rows: int = ROWS + BLOCKS * SIZE):
    torch.manual_seed(0)
    q = torch.randn(2, heads, BLOCKS * SIZE, width, dtype=torch.float64)
    k = torch.randn(2, groups, rows, width, dtype=torch.float64)
    v = torch.randn(2, groups, rows, value_width, dtype=torch.float64)
    return q, k, v


def worked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """One query at a time over the keys it may see, and zeros for none."""
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            for row in range(q.shape[2]):
                seen = mask[b, 0, row]
                if seen.any():
                    weights = (k[b, g, seen] @ q[b, h, row] * scale).softmax(-1)
                    out[b, h, row] = weights @ v[b, g, seen]
    return out


def run(backend: str, asked: Visibility, window, is_causal, tensors, scale: float = 0.3) -> Tensor:
    return attend(*tensors, asked.view(window, is_causal, ROWS, backend), scale=scale)


def gradients(backend: str, asked: Visibility, window, is_causal, tensors, scale: float = 0.3):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = run(backend, asked, window, is_causal, leaves, scale)
    torch.manual_seed(1)
    return out.detach(), torch.autograd.grad(out, leaves, torch.randn_like(out))


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize(("groups", "value_width"), [(4, 8), (2, 8), (1, 6), (4, 6)])
def test_every_backend_is_attention_worked_by_hand(backend, window, is_causal, groups, value_width):
    tensors = inputs(groups=groups, value_width=value_width)
    asked = training()
    expected = worked(*tensors, asked.dense(window, is_causal, ROWS), 0.3)
    torch.testing.assert_close(run(backend, asked, window, is_causal, tensors), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("make", [training, all_dropped])
def test_gradients_of_eager_and_sdpa_agree(window, is_causal, make):
    asked = make()
    eager, eager_gradients = gradients("eager", asked, window, is_causal, inputs())
    sdpa, sdpa_gradients = gradients("sdpa", asked, window, is_causal, inputs())
    torch.testing.assert_close(eager, sdpa, rtol=0, atol=1e-12)
    torch.testing.assert_close(eager_gradients, sdpa_gradients, rtol=0, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in eager_gradients)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_gradients_are_those_of_attention_worked_by_hand(backend):
    leaves = [x.clone().requires_grad_() for x in inputs()]
    out = worked(*leaves, training().dense(5, True, ROWS), 0.3)
    torch.manual_seed(1)
    expected = torch.autograd.grad(out, leaves, torch.randn_like(out))
    torch.testing.assert_close(gradients(backend, training(), 5, True, inputs())[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("make", [training, all_dropped])
def test_a_query_that_sees_nothing_is_exactly_zero_before_and_after_the_projection(backend, make):
    asked = make()
    view = asked.view(None, False, ROWS, backend)
    out = attend(*inputs(), view, scale=0.3)
    dead = ~asked.dense(None, False, ROWS)[:, 0].any(-1)
    assert dead.any()
    assert (out.transpose(1, 2)[dead] == 0).all()
    torch.manual_seed(2)
    projection = torch.nn.Linear(24, 5).double()
    projected = silence(projection(out.transpose(1, 2).flatten(-2)), view)
    assert (projected[dead] == 0).all()
    assert (projected[~dead] != 0).all()


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_query_that_sees_nothing_passes_no_gradient(backend):
    asked = training()
    dead = ~asked.dense(None, False, ROWS)[:, 0].any(-1)
    leaves = [x.clone().requires_grad_() for x in inputs()]
    out = run(backend, asked, None, False, leaves).transpose(1, 2)[dead]
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_rows_that_nobody_sees_may_hold_anything(backend):
    q, k, v = inputs()
    expected = run(backend, training(), None, False, (q, k, v))
    k, v = k.clone(), v.clone()
    k[1, :, 6:ROWS] = 1e6
    v[1, :, 6:ROWS] = -1e6
    assert torch.equal(run(backend, training(), None, False, (q, k, v))[0], expected[0])
    torch.testing.assert_close(run(backend, training(), None, False, (q, k, v)), expected, rtol=0, atol=1e-12)


def decoding() -> Visibility:
    return Visibility(torch.full((2, 1), ROWS), torch.arange(ROWS).repeat(2, 1), BLOCKS * SIZE, everything=True)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex", "flash"])
@pytest.mark.parametrize(("window", "is_causal"), [*RULES, (20, False), (15, False)])
@pytest.mark.parametrize(("groups", "value_width"), [(2, 8), (4, 6)])
def test_decoding_step(backend, window, is_causal, groups, value_width, flash_attn):
    tensors = inputs(groups=groups, value_width=value_width)
    asked = decoding()
    expected = worked(*tensors, asked.dense(window, is_causal, ROWS), 0.3)
    torch.testing.assert_close(run(backend, asked, window, is_causal, tensors), expected, rtol=0, atol=1e-12)
    assert bool(flash_attn.calls) == (backend == "flash")


def test_eager_is_the_eager_attention_of_transformers():
    q, k, v = (x.float() for x in inputs(value_width=8))
    view = decoding().view(5, True, ROWS, "eager")
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    bias = torch.zeros(view.mask.shape).masked_fill(~view.mask, torch.finfo(torch.float32).min)
    expected, _ = eager_attention_forward(module, q, k, v, bias, scaling=0.3)
    torch.testing.assert_close(attend(q, k, v, view, scale=0.3).transpose(1, 2), expected, rtol=0, atol=1e-6)


class StandIn(ModuleType):
    """`flash_attn` as its documentation states it: rows before heads, one width, windows aligned at the last row."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.calls: list[dict] = []

    def flash_attn_func(self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
        assert q.shape[-1] == k.shape[-1] == v.shape[-1]
        assert q.shape[2] % k.shape[2] == 0
        self.calls.append({"dropout_p": dropout_p, "window_size": window_size, "causal": causal})
        offset = torch.arange(k.shape[1]) - (torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
        left, right = window_size[0], 0 if causal else window_size[1]
        seen = torch.ones_like(offset, dtype=torch.bool)
        if left >= 0:
            seen &= offset >= -left
        if right >= 0:
            seen &= offset <= right
        repeats = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = q @ k.repeat_interleave(repeats, 1).mT * softmax_scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ v.repeat_interleave(repeats, 1)).transpose(1, 2)


@pytest.fixture
def flash_attn(monkeypatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    return stand_in


def test_flash_gets_the_dropout_of_the_view(flash_attn):
    view = decoding().view(5, True, ROWS, "flash", 0.25)
    attend(*inputs(), view, scale=0.3)
    assert flash_attn.calls == [{"dropout_p": 0.25, "window_size": (4, 0), "causal": False}]


def test_flash_without_its_package_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ViewError, match="needs the package flash_attn, which is not installed"):
        attend(*inputs(), View(None, "flash", 0.0, None), scale=0.3)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_dropout_drops_weights_and_keeps_the_mean(backend):
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 500, 4), torch.zeros(1, 1, 64, 4)
    v = torch.ones(1, 1, 64, 4)
    out = attend(q, k, v, View(None, backend, 0.5, None), scale=1.0)
    assert out[..., 0].unique().numel() > 5
    assert abs(out.mean().item() - 1.0) < 0.02
    dropped = training().view(None, False, ROWS, backend, 1.0 - 1e-9)
    assert attend(*inputs(), dropped, scale=0.3).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_narrow_dtypes_stay_near_the_exact_result(backend, dtype):
    tensors = inputs()
    exact = run("eager", training(), 5, True, tensors)
    out = run(backend, training(), 5, True, [x.to(dtype) for x in tensors])
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_masks_of_numbers_are_refused(backend, dtype):
    mask = torch.ones(2, 1, 16, 28, dtype=dtype)
    with pytest.raises(ViewError, match=f"{backend} reads a bool mask .* not one of {dtype}"):
        attend(*inputs(), View(mask, backend, 0.0, None), scale=0.3)


def test_a_view_made_for_one_backend_is_refused_by_another():
    tiles = training().view(None, False, ROWS, "flex")
    dense = training().view(None, False, ROWS, "sdpa")
    for view, words in [
        (tiles._replace(backend="eager"), "eager reads a bool mask, not a BlockMask"),
        (View(Band(3, 0), "sdpa", 0.0, None), "sdpa reads a bool mask, not a Band"),
        (dense._replace(backend="flex"), "flex reads a BlockMask, not a Tensor"),
        (dense._replace(backend="flash"), "flash reads a band, not a Tensor"),
        (tiles._replace(dropout=0.1), "flex drops no attention weights; dropout is 0.1"),
        (dense._replace(backend="paged"), "'paged' is none of eager, sdpa, flex, flash"),
    ]:
        with pytest.raises(ViewError, match=words):
            attend(*inputs(), view, scale=0.3)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_compiles_in_one_graph(backend):
    torch._dynamo.reset()

    def whole(q: Tensor, k: Tensor, v: Tensor, anchors: Tensor, context: Tensor) -> Tensor:
        view = Visibility(anchors, context, SIZE).view(5, True, context.shape[1], backend)
        return silence(attend(q, k, v, view, scale=0.3).transpose(1, 2).flatten(-2), view)

    asked = training()
    tensors = (*inputs(), asked.anchors, asked.context)
    compiled = torch.compile(whole, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*tensors), whole(*tensors), rtol=0, atol=1e-12)


# Mutations: each must move the result by far more than the tolerance of the tests above.


def shifted(query: Queries, key: Keys, window, is_causal) -> Tensor:
    return sees(query, key, None if window is None else window + 1, is_causal)


def at_the_anchor(query: Queries, key: Keys, window, is_causal) -> Tensor:
    return sees(query._replace(anchor=query.anchor + 1), key, window, is_causal)


def gap(backend: str) -> float:
    tensors = inputs()
    expected = worked(*tensors, pair_rule(5, True), 0.3)
    return (run(backend, training(), 5, True, tensors) - expected).abs().max().item()


def pair_rule(window: int, is_causal: bool) -> Tensor:
    asked = training()
    query = Queries(*(None if field is None else field[..., None] for field in asked.queries()))
    key = asked.keys(ROWS)
    return sees(query, Keys(key.block, key.position[:, None]), window, is_causal)[:, None]


@pytest.mark.parametrize("mutation", [shifted, at_the_anchor])
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_a_shifted_window_or_anchor_is_noticed(backend, mutation, monkeypatch):
    assert gap(backend) < 1e-12
    monkeypatch.setattr("draftc.runtime.visibility.sees", mutation)
    monkeypatch.setattr("draftc.runtime.tiles.sees", mutation)
    assert gap(backend) > 1e-3


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_dropping_the_zeroing_is_noticed(backend, monkeypatch):
    monkeypatch.setattr(f"draftc.runtime.attend.{backend}.silence_heads", lambda out, view: out)
    assert gap(backend) > 1e-3


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_a_scale_off_by_a_millionth_is_noticed(backend):
    tensors = inputs()
    expected = worked(*tensors, pair_rule(5, True), 0.3)
    out = run(backend, training(), 5, True, tensors, scale=0.3 * (1 + 1e-6))
    assert (out - expected).abs().max() > 1e-9


# The registry.

REQUEST = BackendRequest(
    op="attend",
    phase="decoding",
    device="cuda",
    dtype="bfloat16",
    q_dim=128,
    v_dim=128,
    heads=32,
    kv_heads=8,
    block_size=16,
    capability=(9, 0),
    packages={"torch": "2.13.0", "flash-attn": "2.8.3"},
)
BY_NAME = {backend.name: backend for backend in ATTEND_BACKENDS}


def changed(**facts) -> BackendRequest:
    fields = {name: getattr(REQUEST, name) for name in REQUEST.__dataclass_fields__}
    return BackendRequest(**(fields | facts))


@pytest.mark.parametrize(
    ("name", "facts", "refusals"),
    [
        ("eager", {"device": "cpu", "dtype": "float64", "dropout": 0.1}, []),
        ("sdpa", {"q_dim": 8, "phase": "training"}, []),
        ("flex", {"phase": "training"}, []),
        ("flex", {"dropout": 0.1}, [("dropout", "attention_dropout is 0.1; flex drops no weights")]),
        ("flex", {"device": "cpu", "q_dim": 4, "needs_grad": False}, []),
        ("flex", {"device": "cpu"}, [("cpu-gradient", "flex has no backward on CPU, and gradients are needed")]),
        ("flex", {"v_dim": 8}, [("narrow-head", "heads of 128 and 8 channels; its kernels need 16")]),
        ("flex", {"dtype": "float64"}, [("dtype", "its kernels do not compile for float64")]),
        ("flex", {"capability": (6, 1)}, [("capability", "compute capability 6.1 is below 7.0")]),
        ("flex", {"capability": None}, []),
        ("flash", {}, []),
        ("flash", {"q_dim": 192}, []),
        ("flash", {"phase": "training"}, [("mask", "training blocks need a mask; flash takes none")]),
        ("flash", {"dtype": "float32"}, [("dtype", "flash computes in bfloat16 and float16, not float32")]),
        ("flash", {"q_dim": 576}, [("wide-head", "heads of 576 channels; flash takes 256")]),
        ("flash", {"capability": (7, 5)}, [("capability", "compute capability 7.5 is below 8.0")]),
        ("flash", {"packages": {}}, [("package", "needs flash-attn, an optional package (--package flash-attn)")]),
        ("flash", {"device": "cpu", "capability": None}, [("device", "flash runs on CUDA only")]),
    ],
)  # fmt: skip
def test_refusals_give_their_numbers(name: str, facts: dict, refusals: list):
    assert BY_NAME[name].refuse(changed(**facts)) == tuple(Refusal(*pair) for pair in refusals)


def test_registry_names_functions_that_exist_and_the_dispatcher_knows_them_all():
    for backend in ATTEND_BACKENDS:
        module, _, function = backend.functions["attend"].partition(":")
        found = getattr(__import__(f"draftc.runtime.{module}", fromlist=[function]), function)
        assert inspect.signature(found) == inspect.signature(attend)
        assert getattr(attend_package, function) is found


def test_registry_itself_imports_no_tensor_library():
    tree = ast.parse(inspect.getsource(registry))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported == ["draftc.runtime.request"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


@pytest.mark.parametrize(
    ("phase", "device", "order"),
    [
        ("training", "cuda", ["flash", "flex", "sdpa", "eager"]),
        ("decoding", "cuda", ["flash", "sdpa", "flex", "eager"]),
        ("training", "cpu", ["sdpa", "flex", "eager"]),
        ("decoding", "cpu", ["sdpa", "flex", "eager"]),
    ],
)
def test_order_of_choice(phase, device, order):
    ranked = {b.name: b.rank(phase, device) for b in ATTEND_BACKENDS if b.rank(phase, device) is not None}
    assert sorted(ranked, key=ranked.get, reverse=True) == order


def test_flex_and_sdpa_agree_in_a_long_batch_of_tiles():
    torch.manual_seed(0)
    anchors = torch.randint(0, 300, (1, 20))
    anchors[0, 5:9] = -1
    asked = Visibility(anchors, torch.arange(300)[None], 16)
    q, k = torch.randn(1, 2, 320, 8, dtype=torch.float64), torch.randn(1, 1, 620, 8, dtype=torch.float64)
    outs = [attend(q, k, k, asked.view(40, False, 300, name), scale=0.3) for name in ("flex", "sdpa")]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)
    assert F.mse_loss(*outs) < 1e-24
