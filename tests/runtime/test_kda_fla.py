"""What fla-core's `chunk_kda` is handed: launches, padding, packed sequences, options. Its kernels need a card."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftc.runtime.kda import fla, kda, kda_states
from draftc.runtime.kda.math import activated
from draftc.runtime.kda.recurrent import advance_recurrent
from draftc.runtime.visibility import View
from tests.runtime.kda_inputs import Hard, kda_inputs

OPTIONS = {"use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel"}


class StandIn:
    """`chunk_kda` as its documentation states it, by the plain recurrence, noting the sizes it was called with."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, q, k, v, g, beta, *, A_log, dt_bias, lower_bound, safe_gate, **named):  # noqa: N803
        assert all(named.pop(name) is True for name in OPTIONS)
        assert safe_gate is (lower_bound is not None)
        starts, host = named.pop("cu_seqlens", None), named.pop("cu_seqlens_cpu", None)
        state, wants_state = named.pop("initial_state"), named.pop("output_final_state", False)
        assert not named
        view = View(None, "kda_recurrent", 0.0, None)
        if starts is None:
            self.sizes.append(q.shape[0])
            return kda(q, k, v, g, beta, A_log, dt_bias, state, view, lower_bound), None
        assert torch.equal(starts.cpu(), host)
        assert q.shape[0] == 1
        assert state.shape[0] == len(host) - 1
        assert host[-1] == q.shape[1]
        assert wants_state
        assert not q.any()
        self.sizes.append(len(host) - 1)
        final = []
        for number, (start, stop) in enumerate(zip(host.tolist(), host.tolist()[1:], strict=False)):
            own = [x[:, start:stop] for x in (k, v, g, beta)]
            final.append(advance_recurrent(state[number : number + 1], *activated(*own, A_log, dt_bias, lower_bound)))
        return None, torch.cat(final)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(fla, "fla_chunk_kda", lambda: stand_in)
    return stand_in


def through(backend: str) -> View:
    return View(None, backend, 0.0, None)


def single(inputs: list[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.detach().float() for x in inputs]


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_launches_are_cut_and_padded_and_put_together(chunks, with_state, bound, monkeypatch) -> None:
    monkeypatch.setattr(fla, "GRID_LIMIT", 8)
    inputs = single(kda_inputs(6, Hard(), with_state, batch=7))
    got = kda(*inputs, through("kda_fla"), bound)
    assert chunks.sizes == [4, 4]
    want = kda(*inputs, through("kda_recurrent"), bound)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_padding_is_zero_and_no_gradient_comes_from_it(chunks) -> None:
    inputs = [None if x is None else x.requires_grad_() for x in single(kda_inputs(6, Hard(), True, batch=3))]
    found = []
    for backend in ("kda_fla", "kda_recurrent"):
        out = kda(*inputs, through(backend), -5.0)
        found.append(torch.autograd.grad(out.sum(), inputs))
    assert chunks.sizes == [4]
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("anchors", [[[0, 5, 70, 17, 17], [50, 1, 2, 3, 64]], [[0, 0], [0, 0]], [[7, 7], [-1, 70]]])
def test_packed_sequences_give_the_states_of_padded_ones(chunks, anchors) -> None:
    inputs = [x.requires_grad_() for x in single(kda_inputs(70, Hard(), True, batch=2)[1:])]
    found = []
    for backend in ("kda_fla", "kda_block"):
        states = kda_states(*inputs, torch.tensor(anchors), through(backend), -5.0)
        weight = torch.linspace(-1, 1, states.numel()).view_as(states)
        found.append((states, *torch.autograd.grad((states * weight).sum(), inputs, allow_unused=True)))
    assert all(size & (size - 1) == 0 for size in chunks.sizes)
    for got, want in zip(*found, strict=True):
        got, want = (torch.zeros(1) if x is None else x for x in (got, want))
        assert (got - want).abs().max() <= 1e-5 * max(1, want.abs().max())


def test_chunk_kda_has_every_argument_that_it_is_handed() -> None:
    spec = importlib.util.find_spec("fla")
    if spec is None:
        pytest.skip("fla-core is not installed")
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / "ops" / "kda" / "chunk.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "chunk_kda")
    known = {argument.arg for argument in function.args.args}
    handed = set(fla.kernel_options(torch.zeros(1), torch.zeros(1), torch.zeros(1), -5.0)) - {"A_log", "dt_bias"}
    assert handed | {"initial_state", "output_final_state", "cu_seqlens", "cu_seqlens_cpu"} <= known
    assert [argument.arg for argument in function.args.args][:5] == ["q", "k", "v", "g", "beta"]


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.ops.kda", None)
    with pytest.raises(fla.MissingKernelError, match="fla-core with Triton"):
        kda(*kda_inputs(2, Hard(), False), through("kda_fla"), None)
