"""The proofs of dense drafts bite: each small wrong must break one of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from draftc.runtime import visibility as visibility_module
from draftc.runtime.attend import eager, sdpa
from draftc.runtime.attention import gqa
from draftc.runtime.draft import DraftModel
from draftc.runtime.sees import Keys, Queries
from draftc.runtime.visibility import View
from tests.oracles.outside import assert_equal, widen_norms
from tests.oracles.test_zlab import STACKS, pair
from tests.runtime import test_draft_decoding, test_draft_training
from tests.runtime.drafts import streams

Parity = Callable[[DraftModel], None]


@pytest.fixture
def zlab(monkeypatch: pytest.MonkeyPatch) -> tuple[DraftModel, Parity]:
    """A draft, and the check that it equals z-lab's."""
    widen_norms(monkeypatch, Qwen3RMSNorm)
    ours, theirs = pair(STACKS["biased"])
    noise, taps = streams(ours, 11)
    with torch.no_grad():
        want = theirs(position_ids=torch.arange(15)[None], noise_embedding=noise, target_hidden=taps)

    def check(draft: DraftModel) -> None:
        with torch.no_grad():
            assert_equal(draft(noise, taps).last_hidden_state, want)

    return ours, check


def test_a_tensor_scaled_by_a_millionth(zlab: tuple[DraftModel, Parity]) -> None:
    # Its first row only: a norm takes the scale of the whole of `fc` back.
    draft, check = zlab
    check(draft)
    survivors = []
    for name, parameter in draft.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter[:1].mul_(1 + 1e-6)
        try:
            check(draft)
            survivors.append(name)
        except AssertionError:
            pass
        with torch.no_grad():
            parameter.copy_(kept)
    assert survivors == []


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_window_shifted_by_one(zlab: tuple[DraftModel, Parity], shift: int) -> None:
    draft, check = zlab
    draft.layers[1].window += shift
    with pytest.raises(AssertionError):
        check(draft)


def test_causality_turned_round(zlab: tuple[DraftModel, Parity]) -> None:
    draft, check = zlab
    draft.layers[1].is_causal = False
    with pytest.raises(AssertionError):
        check(draft)


def test_an_anchor_that_sees_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = visibility_module.sees

    def lax(query: Queries, key: Keys, *facts: object) -> Tensor:
        return rule(query._replace(anchor=query.anchor + 1), key, *facts)

    test_draft_training.test_a_context_row_moves_exactly_the_queries_that_see_it("full", "sdpa")
    test_draft_decoding.test_training_blocks_are_decoding_steps("full")
    monkeypatch.setattr(visibility_module, "sees", lax)
    with pytest.raises(AssertionError):
        test_draft_training.test_a_context_row_moves_exactly_the_queries_that_see_it("full", "sdpa")
    with pytest.raises(AssertionError):
        test_draft_decoding.test_training_blocks_are_decoding_steps("full")


@pytest.mark.parametrize("backend", [sdpa, eager])
@pytest.mark.parametrize("bias", [False, True])
def test_zeroing_left_out(monkeypatch: pytest.MonkeyPatch, backend: object, bias: bool) -> None:
    def leave(out: Tensor, _: View) -> Tensor:
        return out

    name = backend.__name__.rpartition(".")[2]
    test_draft_training.test_attention_of_a_dropped_block_is_exactly_zero(bias, name)
    monkeypatch.setattr(*((gqa, "silence", leave) if bias else (backend, "silence_heads", leave)))
    with pytest.raises(AssertionError):
        test_draft_training.test_attention_of_a_dropped_block_is_exactly_zero(bias, name)
