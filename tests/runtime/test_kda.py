"""The KDA operation: closed form and recurrence are one function, isolated, wide inside, and backends say why not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftc.runtime.kda import kda, kda_states
from draftc.runtime.kda.block import decayed_products, decays
from draftc.runtime.kda.fla import launch_sizes
from draftc.runtime.kda.math import (
    BlockSizeError,
    convolve_rows,
    fold_blocks,
    gate_rows,
    log_decay,
    rounded,
    unit_rows,
)
from draftc.runtime.kda.registry import KDA_BACKENDS
from draftc.runtime.request import BackendRequest
from draftc.runtime.visibility import View, ViewError
from tests.runtime.kda_inputs import NAMES, Hard, kda_inputs

HARD = [
    pytest.param(Hard(), id="plain"),
    pytest.param(Hard(gate=30.0), id="saturated-gates"),
    pytest.param(Hard(common=0.95), id="correlated-keys"),
    pytest.param(Hard(gate=30.0, common=0.95), id="both"),
]


def through(backend: str) -> View:
    return View(None, backend, 0.0, None)


def results(backend: str, inputs: list[Tensor | None], bound: float | None) -> dict[str, Tensor]:
    """The output and the gradient of every input."""
    out = kda(*inputs, through(backend), bound)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    leaves = {name: x for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    found = torch.autograd.grad((out * weight).sum(), list(leaves.values()), allow_unused=True)
    zeros = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves.values(), strict=True)]
    return {"out": out, **dict(zip(leaves, zeros, strict=True))}


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 31, 32])
@pytest.mark.parametrize("bound", [-5.0, -0.5, None])
@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("with_state", [False, True])
def test_the_closed_form_is_the_recurrence_outputs_and_gradients(rows, bound, hard, with_state) -> None:
    inputs = kda_inputs(rows, hard, with_state)
    want = results("kda_recurrent", inputs, bound)
    for name, got in results("kda_block", inputs, bound).items():
        scale = max(1.0, want[name].abs().max().item())
        assert torch.isfinite(got).all(), name
        assert (got - want[name]).abs().max().item() <= 1e-11 * scale, name


@pytest.mark.parametrize("name", NAMES)
def test_an_input_off_by_a_millionth_is_seen(name) -> None:
    inputs = kda_inputs(8, Hard(), True)
    want = results("kda_recurrent", inputs, -5.0)["out"]
    changed = [x.detach().clone() for x in inputs]
    changed[NAMES.index(name)].view(-1)[::3] *= 1 + 1e-6
    assert (kda(*changed, through("kda_block"), -5.0) - want).abs().max() > 1e-10


@pytest.mark.parametrize("rows", [1, 5, 16, 24])
def test_decayed_products_is_its_definition_and_never_grows(rows, monkeypatch) -> None:
    left, k, step = (x.detach().transpose(1, 2) for x in (kda_inputs(rows, Hard(), False)[i] for i in (0, 1, 3)))
    g = -step.abs().mul(40)
    summed = g.cumsum(-2)
    pairs = (summed.unsqueeze(-2) - summed.unsqueeze(-3)).exp() * k.unsqueeze(-3)
    want = (left.unsqueeze(-2) * pairs).sum(-1).nan_to_num(0, 0, 0).tril(-1)
    largest = []
    exp = torch.Tensor.exp
    monkeypatch.setattr(torch.Tensor, "exp", lambda x: largest.append(x.max().item()) or exp(x))
    torch.testing.assert_close(decayed_products(left, k, decays(g)[0]), want, rtol=1e-12, atol=1e-14)
    assert largest or rows == 1
    assert all(top <= 0 for top in largest)


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block"])
def test_a_sequence_does_not_know_its_neighbours(backend) -> None:
    inputs = [x.detach() for x in kda_inputs(8, Hard(), True)]
    before = kda(*inputs, through(backend), -5.0)
    for tensor in inputs[:5]:
        tensor[1] += 20
    after = kda(*inputs, through(backend), -5.0)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block"])
def test_a_row_does_not_know_later_rows(backend) -> None:
    inputs = [x.detach() for x in kda_inputs(8, Hard(), True)]
    before = kda(*inputs, through(backend), None)
    for tensor in inputs[:5]:
        tensor[:, 5:] -= 3
    after = kda(*inputs, through(backend), None)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=1e-13, atol=1e-13)
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 0.1


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block"])
def test_low_precision_activations_are_widened_and_returned(backend) -> None:
    inputs = [x.detach() for x in kda_inputs(16, Hard(), True, dtype=torch.bfloat16)]
    inputs[-1] = inputs[-1].float()
    out = kda(*inputs, through(backend), -5.0)
    want = kda(*(x.double() for x in inputs), through("kda_recurrent"), -5.0)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block"])
def test_autocast_does_not_reach_inside(backend) -> None:
    inputs = [x.detach().float() for x in kda_inputs(16, Hard(), True)]
    want = kda(*inputs, through(backend), -5.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kda(*inputs, through(backend), -5.0), want)


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block"])
def test_gate_parameters_are_rounded_like_activations_in_every_phase(backend) -> None:
    inputs = [x.detach() for x in kda_inputs(8, Hard(), False, dtype=torch.bfloat16)[:-1]]
    wide = [*inputs[:5], *(x.float() + 1e-4 * x.float() for x in inputs[5:]), None]
    narrow = [*wide[:5], *(x.bfloat16() for x in wide[5:7]), None]
    assert not torch.equal(wide[5].float(), narrow[5].float())
    assert torch.equal(kda(*wide, through(backend), -5.0), kda(*narrow, through(backend), -5.0))
    assert rounded(wide[5], wide[0]).dtype == torch.float32


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(ViewError, match="'sdpa' is none of"):
        kda(*kda_inputs(2, Hard(), False), through("sdpa"), None)
    _, k, v, decay, beta, rate, bias, state = kda_inputs(2, Hard(), True)
    with pytest.raises(ViewError, match="'sdpa' is none of"):
        kda_states(k, v, decay, beta, rate, bias, state, torch.zeros(3, 1, dtype=torch.long), through("sdpa"), None)


def test_folding_needs_whole_blocks() -> None:
    rows = torch.arange(2 * 6 * 3.0).view(2, 6, 3)
    assert torch.equal(fold_blocks(rows, 3), rows.view(4, 3, 3))
    with pytest.raises(BlockSizeError, match="6 draft rows are no whole number of blocks of 4"):
        fold_blocks(rows, 4)


def test_the_convolution_is_causal_and_matches_its_vector() -> None:
    weight = torch.tensor([[0.1, -0.2, 0.3, 0.4]], dtype=torch.float64)
    rows = torch.tensor([1.0, 2, -1, 0.5], dtype=torch.float64).view(1, 4, 1)
    want = [0.239475064045, 0.825286116155, 0.0, -0.160524935955]
    assert convolve_rows(rows, weight).flatten().tolist() == pytest.approx(want, abs=1e-11)
    assert convolve_rows(rows, weight[:, 3:]).flatten().tolist() == pytest.approx(
        torch.nn.functional.silu(0.4 * rows).flatten().tolist(), abs=1e-15
    )
    assert torch.equal(convolve_rows(rows[:, :2], weight), convolve_rows(rows, weight)[:, :2])


def test_the_gates_match_their_vectors() -> None:
    raw = torch.tensor([0.5, -1], dtype=torch.float64).view(1, 1, 1, 2)
    rate = torch.tensor([2.0], dtype=torch.float64).log()
    bias = torch.tensor([0.1, -0.2], dtype=torch.float64)
    unbounded = log_decay(raw, rate, bias, None).flatten().tolist()
    assert unbounded == pytest.approx([-2.074975900972, -0.526564934676], abs=1e-11)
    bounded = log_decay(raw, rate, bias, -5.0).flatten().tolist()
    assert bounded == pytest.approx([-3.842623917495, -0.415863482470], abs=1e-11)


def test_the_gated_norm_matches_its_vector() -> None:
    out, weight, gate = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, 2], [1, 0.5], [0.3, -0.7]))
    got = gate_rows(out, gate, weight.double(), 1e-5).tolist()
    assert got == pytest.approx([0.363308620976, 0.209856059377], abs=1e-11)


def test_the_epsilon_of_unit_rows_stands_inside_the_root() -> None:
    assert unit_rows(torch.zeros(3)).tolist() == [0, 0, 0]
    assert unit_rows(torch.tensor([1e-3, 0.0], dtype=torch.float64))[0].item() == pytest.approx(1e-3 / 2e-6**0.5)


def test_launches_stay_within_the_grid_and_fill_up_to_few_shapes() -> None:
    assert launch_sizes(512, 32) == [(512, 512)]
    assert launch_sizes(300, 32) == [(300, 512)]
    assert launch_sizes(5000, 32) == [(2047, 2047), (2047, 2047), (906, 1024)]
    assert launch_sizes(1, 96) == [(1, 1)]
    assert launch_sizes(3, 70000) == [(1, 1)] * 3
    assert all(rows * 96 <= 65535 for _, rows in launch_sizes(4096, 96))


CARD = BackendRequest(
    op="kda",
    phase="training",
    device="cuda",
    dtype="bfloat16",
    q_dim=128,
    v_dim=128,
    heads=32,
    kv_heads=32,
    block_size=16,
    gate_lower_bound=-5.0,
    capability=(9, 0),
    packages={"torch": "2.13.0", "triton": "3.6.0", "fla-core": "0.6.0"},
)


def refusals(request: BackendRequest, name: str = "kda_fla") -> list[str]:
    backend = next(each for each in KDA_BACKENDS if each.name == name)
    return [f"{refusal.word}: {refusal.reason}" for refusal in backend.refuse(request)]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device": "cpu"}, "device: chunk_kda runs on cuda, not on cpu"),
        ({"dtype": "float64"}, "dtype: chunk_kda has no float64: it computes in float32"),
        ({"q_dim": 512, "v_dim": 512}, "head-dim: head_dim 512 exceeds 256"),
        ({"gate_lower_bound": -8.0}, "gate-bound: gate_lower_bound -8 is outside [-5, 0)"),
        ({"capability": (7, 5)}, "capability: compute capability 7.5 is below 8.0"),
        (
            {"packages": {"torch": "2.13.0", "triton": "3.6.0"}},
            "package: needs fla-core, an optional package (--package fla-core)",
        ),
        (
            {"packages": {"fla-core": "0.6.0", "triton": None}},
            "package: needs triton, an optional package (--package triton)",
        ),
        (
            {"packages": {"fla-core": "0.5.0", "triton": "3.6.0"}},
            "version: fla-core 0.5.0 is older than 0.5.1: its gate stays outside the kernel",
        ),
    ],
)
def test_fla_refuses_with_numbers(changed, reason) -> None:
    assert refusals(CARD) == []
    assert refusals(replace(CARD, gate_lower_bound=None, capability=None)) == []
    assert refusals(replace(CARD, **changed)) == [reason]


def test_fla_gives_every_reason_at_once() -> None:
    assert len(refusals(replace(CARD, device="cpu", dtype="float64", q_dim=300, packages={}))) == 5


def test_plain_backends_refuse_nothing_and_functions_exist() -> None:
    from importlib import import_module

    for backend in KDA_BACKENDS:
        for where in backend.functions.values():
            module, name = where.split(":")
            assert callable(getattr(import_module(f"draftc.runtime.{module}"), name))
    odd = replace(CARD, device="cpu", dtype="float64", q_dim=999)
    assert refusals(odd, "kda_block") == refusals(odd, "kda_recurrent") == []
