"""Tokens come round by round, and what has come is what is returned."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import draftc
from draftc.loading import LoadError
from draftc.runtime.generate import generate, start_decoding, stream
from tests.generation.support import Planted, prompts, small_draft, small_target


class Recorder:
    """A streamer as transformers calls it."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        assert not self.ended
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_streamer_gets_the_prompt_and_then_every_token(temperature: float) -> None:
    ids, mask = prompts([6])
    recorder = Recorder()
    options = {"max_new_tokens": 17, "temperature": temperature, "seed": 5}
    found = generate(small_draft(), small_target(), ids, mask, streamer=recorder, **options)
    assert torch.equal(recorder.values[0], ids)
    assert tuple(torch.cat(recorder.values[1:]).tolist()) == found.new_tokens[0]
    assert recorder.ended == 1
    assert len(recorder.values) == found.rounds + 2


def test_rounds_add_up_to_the_result() -> None:
    ids, mask = prompts([6, 3, 9])
    draft, target = small_draft(("scan", "near")), small_target()
    rounds = list(stream(draft, target, ids, mask, max_new_tokens=17))
    found = generate(draft, target, ids, mask, max_new_tokens=17)
    for row in range(3):
        assert tuple(t for each in rounds for t in each.tokens.get(row, ())) == found.new_tokens[row]
    assert not rounds[0].acceptance_lengths
    assert len(rounds) == found.rounds + 1


def test_a_round_gives_what_it_accepted_and_the_targets_own_token() -> None:
    ids, mask = prompts([6, 3])
    rounds = Planted(small_draft(block_size=6), small_target(), ids, mask, 40, seed=2).rounds()
    full = [each for each, after in pairwise(rounds[1:]) if len(after.tokens) == 2]
    assert full
    for each in full:
        assert {row: len(tokens) for row, tokens in each.tokens.items()} == each.acceptance_lengths


def test_a_run_that_is_left_early_leaves_no_hook() -> None:
    ids, mask = prompts([6])
    target = small_target()
    before = [len(module._forward_hooks) for module in target.modules()]
    rounds = stream(small_draft(), target, ids, mask, max_new_tokens=17)
    next(rounds)
    rounds.close()
    assert [len(module._forward_hooks) for module in target.modules()] == before


def test_no_round_reads_more_than_can_be_used() -> None:
    """With one token to go the draft is not asked, and a block is verified no further than the limit."""
    ids, mask = prompts([6])
    run = start_decoding(small_draft(block_size=7), small_target(), ids, mask, max_new_tokens=3, stop_token_ids=())
    sizes = []
    reads = run.reader.read
    run.reader.read = lambda tokens, keep: sizes.append(tokens.shape[1]) or reads(tokens, keep)  # type: ignore[method-assign]
    list(run.rounds())
    assert sizes[0] == 6
    assert max(sizes[1:]) <= 2


class Words:
    """A tokenizer of one id per letter."""

    def __call__(self, text: str, return_tensors: str) -> object:
        rows = torch.tensor([[ord(letter) - ord("a") + 1 for letter in text]])
        return type("Encoded", (), {"input_ids": rows.long()})()


def test_the_api_takes_text_or_ids() -> None:
    draft, target = small_draft(), small_target()
    texts = draftc.generate(draft, target, ["draft", "compiler"], tokenizer=Words(), max_new_tokens=5)
    ids = torch.tensor([[0, 0, 0, 4, 18, 1, 6, 20], [3, 15, 13, 16, 9, 12, 5, 18]])
    told = draftc.generate(draft, target, ids, attention_mask=(ids > 0).long(), max_new_tokens=5)
    assert texts.new_tokens == told.new_tokens
    one = draftc.generate(draft, target, "draft", tokenizer=Words(), max_new_tokens=5)
    assert one.new_tokens[0] == told.new_tokens[0]
    with pytest.raises(LoadError, match="there is no tokenizer"):
        draftc.generate(draft, target, "draft")
    with pytest.raises(LoadError, match="a prompt is empty"):
        draftc.generate(draft, target, "", tokenizer=Words())
