"""What cannot be decoded is refused before the first step, by a typed error with the numbers and a way out."""

import copy
from typing import Any

import pytest
import torch
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from draftc.runtime.generate import generate, start_decoding
from draftc.runtime.generation.alignment import require_movable
from draftc.runtime.generation.errors import (
    BeyondPositionsWarning,
    DraftMismatchError,
    GenerationError,
    PromptError,
    StatefulTargetError,
    UnfilledVocabularyError,
)
from draftc.runtime.generation.reader import TargetReader
from draftc.runtime.train.taps import Taps
from tests.generation.support import DENSE, FAMILIES, prompts, small_draft, small_target


def never_called(model: Any) -> Any:
    """`model`, which fails the test when it is run."""

    def fail(*_: object) -> None:
        raise AssertionError("the first step came before the refusal")

    model.register_forward_pre_hook(fail)
    return model


def other_target(**facts: Any) -> Any:
    return never_called(Qwen3ForCausalLM(Qwen3Config(**{**DENSE, **facts})).double().eval())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: other_target(hidden_size=32), "for a target of width 24; this one is 32"),
        (lambda: other_target(vocab_size=90), "for a vocabulary of 100 tokens; this target has 90"),
        (lambda: other_target(num_hidden_layers=2), "reads layer 2, and the target has 2, counted from 0"),
        (lambda: other_target().float(), "the draft computes in torch.float64, the target in torch.float32"),
        (lambda: other_target().to("meta"), "the draft is on cpu, the target on meta"),
    ],
)
def test_a_draft_for_another_target(target: Any, message: str) -> None:
    ids, mask = prompts([4])
    with pytest.raises(DraftMismatchError, match=message) as caught:
        generate(small_draft(), target(), ids, mask)
    assert caught.value.help


@pytest.mark.parametrize("family", ["dflash", "dspark"])
@pytest.mark.parametrize("state", ["empty", "only-d2t", "torn"])
def test_a_reduced_vocabulary_without_its_tokens(family: str, state: str) -> None:
    draft = copy.deepcopy(small_draft(family=FAMILIES[family], own_vocabulary=20))
    ids, mask = prompts([4])
    assert generate(draft, small_target(), ids, mask, max_new_tokens=3).new_tokens
    if state != "torn":
        draft.t2d.zero_()
    if state == "empty":
        draft.d2t.zero_()
    if state == "torn":
        draft.d2t.zero_()
        draft.d2t[-1] = 5
    with pytest.raises(UnfilledVocabularyError, match="20 of the target's 100 tokens") as caught:
        generate(draft, never_called(other_target()), ids, mask)
    assert "train the draft" in caught.value.help


def test_a_mask_token_without_a_row() -> None:
    draft = small_draft(block_size=5)
    ids, mask = prompts([4])
    draft.config.mask_token_id = 100
    try:
        with pytest.raises(DraftMismatchError, match="mask_token_id 100 has no row among the 100"):
            generate(draft, small_target(), ids, mask)
    finally:
        draft.config.mask_token_id = 99


def test_a_model_that_is_no_causal_language_model() -> None:
    sizes = {"d_model": 24, "d_kv": 8, "num_layers": 2, "num_heads": 3, "d_ff": 40, "vocab_size": 100}
    ids, mask = prompts([4])
    with pytest.raises(DraftMismatchError, match="T5ForConditionalGeneration is no causal language model"):
        generate(small_draft(), T5ForConditionalGeneration(T5Config(**sizes)).double(), ids, mask)


def test_a_target_that_keeps_states() -> None:
    target = MambaForCausalLM(MambaConfig(vocab_size=100, hidden_size=24, num_hidden_layers=4, state_size=4)).double()
    ids, mask = prompts([4])
    with pytest.raises(StatefulTargetError, match="MambaForCausalLM keeps states") as caught:
        generate(small_draft(), never_called(target), ids, mask)
    assert "SGLang" in caught.value.help


def test_a_cache_that_turns_out_not_to_be_croppable() -> None:
    target = small_target()
    reader = TargetReader(target, Taps((0, 2)), [0])
    reader.cache.layers[1] = Uncroppable()
    with pytest.raises(StatefulTargetError, match="cache keeps Uncroppable, which cannot be cropped"):
        reader.read(torch.tensor([[1, 2, 3]]), 1)


class Uncroppable(type(DynamicCache(config=Qwen3Config(**DENSE)).layers[0])):
    is_croppable = False


def test_a_batch_on_a_cache_whose_rows_cannot_move() -> None:
    cache = DynamicCache()
    cache.layers.append(LinearAttentionLayer())
    with pytest.raises(GenerationError, match="LinearAttentionLayer, whose rows cannot move") as caught:
        require_movable(cache)
    assert caught.value.help == "decode one prompt at a time"


@pytest.mark.parametrize(
    ("ids", "mask", "options", "message"),
    [
        (torch.tensor([[1, 2]]), torch.tensor([[0, 0]]), {}, "a prompt has no tokens"),
        (torch.zeros(1, 0, dtype=torch.long), None, {}, "a prompt has no tokens"),
        (torch.tensor([1, 2]), None, {}, r"input_ids \[2\]"),
        (torch.tensor([[1.0, 2.0]]), None, {}, "must be token ids"),
        (torch.tensor([[1, 2]]), torch.ones(1, 3), {}, r"attention_mask \[1, 3\] must be \[1, 2\]"),
        (torch.tensor([[1, 2]]), None, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (torch.tensor([[1, 2], [3, 4]]), None, {"streamer": object()}, "a streamer takes one prompt, not 2"),
    ],
)
def test_prompts_and_limits(ids: Any, mask: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        generate(small_draft(), small_target(), ids, mask, **options)


def test_a_text_that_may_outgrow_the_targets_positions_is_warned_of() -> None:
    target = small_target()
    ids, mask = prompts([4, 9])
    known = target.config.max_position_embeddings
    start_decoding(small_draft(), target, ids, mask, max_new_tokens=known - 9)
    with pytest.warns(
        BeyondPositionsWarning, match=f"of 9 tokens and max_new_tokens {known - 8} may reach {known + 1}"
    ):
        start_decoding(small_draft(), target, ids, mask, max_new_tokens=known - 8)


def test_a_target_without_a_list_of_layers() -> None:
    target = small_target()
    ids, mask = prompts([4])
    target.config.num_hidden_layers = 5
    try:
        with pytest.raises(DraftMismatchError, match="shows no single list of 5 layers"):
            start_decoding(small_draft(), target, ids, mask)
    finally:
        target.config.num_hidden_layers = 4


def test_hooks_leave_with_the_run() -> None:
    target, draft = small_target(), small_draft()
    ids, mask = prompts([4])
    before = [len(module._forward_hooks) for module in target.modules()]
    generate(draft, target, ids, mask, max_new_tokens=5)
    assert [len(module._forward_hooks) for module in target.modules()] == before
