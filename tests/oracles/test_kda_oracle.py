"""KDA agrees with transformers' Kimi-Linear and GLM-5-next, with fla-core's naive recurrence, and with vectors."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from transformers import Glm5NextTextConfig, KimiLinearConfig
from transformers.models.glm5_next import modeling_glm5_next
from transformers.models.kimi_linear import modeling_kimi_linear

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.attention.kda_scan import ScanDeltaAttention
from draftc.runtime.kda import kda, kda_states
from draftc.runtime.kda.math import log_decay, unit_rows
from draftc.runtime.memory import NoMemory
from draftc.runtime.visibility import View
from tests.oracles.wide import WideTorch, widen, without_kernels
from tests.runtime.kda_inputs import Hard, kda_inputs

BACKENDS = ["kda_recurrent", "kda_block"]
B, N, SIZE, C, H, HEADS, DIM, TAPS = 2, 3, 6, 11, 20, 2, 8, 4


def through(backend: str) -> View:
    return View(None, backend, 0.0, None)


@pytest.fixture(autouse=True)
def _float64(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (modeling_kimi_linear, modeling_glm5_next):
        widen(monkeypatch, module)
        without_kernels(monkeypatch, module, "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")


def kimi() -> nn.Module:
    config = KimiLinearConfig(
        hidden_size=H, linear_head_dim=DIM, linear_num_heads=HEADS, linear_conv_kernel_dim=TAPS, num_hidden_layers=2
    )
    return modeling_kimi_linear.KimiLinearDeltaAttention(config, 0).double()


def glm() -> nn.Module:
    config = Glm5NextTextConfig(
        hidden_size=H, linear_head_dim=DIM, linear_num_heads=HEADS, linear_conv_kernel_dim=TAPS, num_hidden_layers=2
    )
    return modeling_glm5_next.Glm5NextTextLinearAttention(config, 0).double()


OUTSIDE = [pytest.param(kimi, None, id="kimi-softplus"), pytest.param(glm, -5.0, id="glm-bounded")]


def public_keys(theirs: nn.Module) -> dict[str, Tensor]:
    """Their parameters under the names of checkpoints: three convolutions, the gate beside the projections."""
    state = dict(theirs.state_dict())
    for letter, weight in zip("qkv", state.pop("conv1d.weight").chunk(3), strict=True):
        state[f"{letter}_conv1d.weight"] = weight.squeeze(1)
    state = {name.removeprefix("forget_gate."): value for name, value in state.items()}
    return {**state, "A_log": state["A_log"].flatten()}


def pair(make, bound: float | None, kind: type[DeltaAttention]) -> tuple[nn.Module, DeltaAttention]:
    torch.manual_seed(5)
    theirs = make()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    ours = kind(H, HEADS, DIM, TAPS, bound, False, theirs.layer_norm_epsilon, SIZE).double()
    ours.load_state_dict(public_keys(theirs))
    return theirs, ours


def streams() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    draw = lambda n: torch.randn(B, n, H, dtype=torch.float64, generator=generator).requires_grad_()  # noqa: E731
    return draw(N * SIZE), draw(C)


def weighted(out: Tensor) -> Tensor:
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()


def gradients(out: Tensor, module: nn.Module, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {**leaves, **dict(module.named_parameters())}
    found = dict(zip(leaves, torch.autograd.grad(weighted(out), list(leaves.values())), strict=True))
    if "conv1d.weight" not in found:
        return found
    for letter, part in zip("qkv", found.pop("conv1d.weight").chunk(3), strict=True):
        found[f"{letter}_conv1d.weight"] = part.squeeze(1)
    found = {name.removeprefix("forget_gate."): value for name, value in found.items()}
    return {**found, "A_log": found["A_log"].flatten()}


def assert_all_close(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("make", "bound"), OUTSIDE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_block_is_a_sequence_of_the_outside_layer(make, bound, backend) -> None:
    theirs, ours = pair(make, bound, DeltaAttention)
    block, context = streams()
    anchors = torch.zeros(B, N, dtype=torch.long)
    want = theirs(block.view(B * N, SIZE, H)).view_as(block)
    got = ours(block, context, anchors, None, through(backend), NoMemory())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert_all_close(gradients(got, ours, {"block": block}), gradients(want, theirs, {"block": block}))


@pytest.mark.parametrize(("make", "bound"), OUTSIDE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scanned_block_continues_the_outside_layer_after_its_context(make, bound, backend) -> None:
    theirs, ours = pair(make, bound, ScanDeltaAttention)
    block, context = streams()
    anchors = torch.tensor([[4, 0, 4], [C, 1, 7]])
    got = ours(block, context, anchors, None, through(backend), NoMemory())
    want = []
    for row in range(B):
        for n, anchor in enumerate(anchors[row].tolist()):
            own = block[row : row + 1, n * SIZE : (n + 1) * SIZE]
            whole = theirs(torch.cat([context[row : row + 1, :anchor], own], dim=1))
            want.append(whole[0, anchor:])
    want = torch.cat(want).view_as(block)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    leaves = {"block": block, "context": context}
    assert_all_close(gradients(got, ours, leaves), gradients(want, theirs, leaves))


@pytest.mark.parametrize(("make", "bound"), OUTSIDE)
@pytest.mark.parametrize("kind", [DeltaAttention, ScanDeltaAttention])
def test_a_row_of_a_weight_off_by_a_millionth_is_seen(make, bound, kind) -> None:
    _, ours = pair(make, bound, kind)
    block, context = streams()
    anchors = torch.tensor([[4, 0, 4], [C, 1, 7]])
    run = lambda: ours(block, context, anchors, None, through("kda_block"), NoMemory())  # noqa: E731
    want = run()
    for name, parameter in ours.named_parameters():
        with torch.no_grad():
            kept = parameter.clone()
            parameter[0].mul_(1 + 1e-6)
            moved = (run() - want).abs().max()
            parameter.copy_(kept)
        assert moved > 1e-10, name


def naive_fla() -> ModuleType:
    """fla-core's `naive.py` by its path: the package itself needs Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None:
        pytest.skip("fla-core is not installed")
    path = Path(spec.submodule_search_locations[0]) / "ops" / "kda" / "naive.py"
    naive_spec = importlib.util.spec_from_file_location("naive_kda", path)
    module = importlib.util.module_from_spec(naive_spec)
    naive_spec.loader.exec_module(module)
    module.torch = WideTorch()
    return module


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_state", [False, True])
def test_the_operation_is_the_naive_recurrence_of_fla(bound, backend, with_state) -> None:
    inputs = kda_inputs(16, Hard(common=0.8), with_state)
    q, k, v, decay, beta, rate, bias, state = inputs
    got = kda(*inputs, through(backend), bound)
    want, final = naive_fla().naive_recurrent_kda(
        unit_rows(q),
        unit_rows(k),
        v,
        log_decay(decay, rate, bias, bound),
        beta.sigmoid(),
        initial_state=state,
        output_final_state=True,
    )
    leaves = [x for x in inputs if x is not None]
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    for ours, theirs in zip(*(torch.autograd.grad(weighted(o), leaves) for o in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    start = torch.zeros_like(final) if state is None else state
    end = torch.full((3, 1), 16)
    states = kda_states(k, v, decay, beta, rate, bias, start, end, through(backend), bound)
    torch.testing.assert_close(states, final, rtol=1e-11, atol=1e-11)


VECTORS = [
    pytest.param(
        None,
        [0.249999812500, 0.499999625000, -1.323606728361, 0.852783918279, 0.088080424697, 0.346085066957],
        [1.203461375723, 0.030292944320, -1.027300482289, 0.661877362637],
        id="zero-state",
    ),
    pytest.param(
        [[0.1, 0.2], [-0.3, 0.4]],
        [0.341405758707, 0.538079145280, -1.338767877269, 0.914377143378, 0.077320127768, 0.389799621447],
        [1.193707908859, 0.069917278994, -1.039067614663, 0.709682158800],
        id="given-state",
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("state", "out", "final"), VECTORS)
def test_the_published_vectors(backend, state, out, final) -> None:
    column = lambda rows: torch.tensor(rows, dtype=torch.float64).view(1, 3, 1, -1)  # noqa: E731
    q, k = column([[1, 0], [0, 1], [1, 1]]), column([[1, 1], [1, -1], [2, 0]])
    v = column([[1, 2], [3, -1], [0.5, 0.5]])
    g = column([[-0.1, -0.2], [-0.3, -0.4], [-0.5, -0.6]])
    strength = torch.tensor([0.5, 1 - 1e-16, 0.25], dtype=torch.float64).view(1, 3, 1)
    raw, beta = torch.expm1(-g).log(), torch.logit(strength)
    rate, bias = torch.zeros(1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    start = None if state is None else torch.tensor(state, dtype=torch.float64)[None, None]
    got = kda(q, k, v, raw, beta, rate, bias, start, through(backend), None)
    assert got.flatten().tolist() == pytest.approx(out, abs=2e-11)
    blank = torch.zeros(1, 1, 2, 2, dtype=torch.float64) if start is None else start
    states = kda_states(k, v, raw, beta, rate, bias, blank, torch.tensor([[3]]), through(backend), None)
    assert states.flatten().tolist() == pytest.approx(final, abs=2e-11)
