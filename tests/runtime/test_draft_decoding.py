"""Decoding with a cache, without one, and the training form give the same numbers; so does a padded row."""

import random

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DFlashCache

from draftc.runtime.draft import DraftModel
from draftc.runtime.memory import DraftCache
from tests.runtime.drafts import BOTH_WAYS, FULL, SLIDING, Dense, dense_draft, streams

TOLERANCE = 1e-12
STACKS = {
    "full": (FULL, FULL),
    "sliding": (SLIDING, SLIDING),
    "both-ways": (BOTH_WAYS, BOTH_WAYS),
    "mixed": (SLIDING, FULL, BOTH_WAYS),
    "two-windows": (Dense(window=2, is_causal=True), Dense(window=6)),
    "window-1": (Dense(window=1), Dense(window=1, is_causal=True)),
    "causal": (Dense(is_causal=True),),
    "no-rope": (Dense(rope_style=None), SLIDING),
    "all-options": (
        Dense(rope_style="interleaved", rotated=4, gate=True, bias=True, qk_norm=False),
        SLIDING,
    ),
}
CACHES = {"draft": DraftCache, "dflash": DFlashCache, "dynamic": DynamicCache}


def step(draft: DraftModel, noise: Tensor, taps: Tensor, **inputs: object) -> Tensor:
    with torch.no_grad():
        return draft(noise_embeds=noise, context_hidden_states=taps, **inputs).last_hidden_state


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() < TOLERANCE)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_a_cache_filled_in_chunks(stack: str, chunk: int) -> None:
    draft = dense_draft(*STACKS[stack])
    noise, taps = streams(draft, 13, blocks=13)
    cache = DraftCache(config=draft.config)
    for start in range(0, 13 - chunk, chunk):
        end = start + chunk
        block = noise[:, 4 * start : 4 * start + 4]
        cached = step(draft, block, taps[:, start:end], cache=cache)
        assert close(cached, step(draft, block, taps[:, :end]))
        cache.crop(-4)
        assert cache.get_seq_length() == end


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", CACHES)
def test_random_acceptance(stack: str, kind: str) -> None:
    draft = dense_draft(*STACKS[stack])
    cache = CACHES[kind](config=draft.config)
    draw = random.Random(stack + kind)
    _, taps = streams(draft, 40)
    start, end = 0, draw.randint(1, 9)
    while end < 40:
        noise, _ = streams(draft, 1, seed=end)
        cached = step(draft, noise, taps[:, start:end], cache=cache)
        assert close(cached, step(draft, noise, taps[:, :end]))
        cache.crop(-4)
        start, end = end, end + draw.randint(1, 4)


def test_a_cache_made_without_a_config_serves_too() -> None:
    draft = dense_draft(*STACKS["mixed"])
    cache = DynamicCache()
    noise, taps = streams(draft, 11)
    step(draft, noise, taps[:, :7], cache=cache)
    cache.crop(-4)
    assert close(step(draft, noise, taps[:, 7:], cache=cache), step(draft, noise, taps))


@pytest.mark.parametrize("stack", STACKS)
def test_training_blocks_are_decoding_steps(stack: str) -> None:
    draft = dense_draft(*STACKS[stack])
    anchors = torch.tensor([[1, 4, 9, 12], [0, 3, 3, -1]])
    noise, taps = streams(draft, 12, blocks=4, batch=2)
    together = step(draft, noise, taps, anchors=anchors)
    for row in range(2):
        for number, anchor in enumerate(anchors[row].tolist()):
            own = slice(4 * number, 4 * number + 4)
            if anchor < 0:
                continue
            alone = step(draft, noise[row : row + 1, own], taps[row : row + 1, :anchor])
            assert close(together[row : row + 1, own], alone)


@pytest.mark.parametrize("stack", STACKS)
def test_left_padding_changes_nothing(stack: str) -> None:
    draft = dense_draft(*STACKS[stack])
    noise, taps = streams(draft, 9, batch=2)
    pads = (0, 4)
    mask = torch.ones(2, 13, dtype=torch.long)
    padded = taps.clone()
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
        padded[row, :pad] = 1e3
    first, then = DraftCache(config=draft.config), DraftCache(config=draft.config)
    together = step(draft, noise, padded, attention_mask=mask, cache=first)
    early = torch.cat([mask[:, :6], torch.ones(2, 4, dtype=torch.long)], dim=1)
    step(draft, noise, padded[:, :6], attention_mask=early, cache=then)
    then.crop(-4)
    resumed = step(draft, noise, padded[:, 6:], attention_mask=mask, cache=then)
    for row, pad in enumerate(pads):
        alone = step(draft, noise[row : row + 1], taps[row : row + 1, pad:])
        assert close(together[row : row + 1], alone)
        assert close(resumed[row : row + 1], alone)


def test_padding_between_rows_takes_no_position() -> None:
    draft = dense_draft(*STACKS["mixed"])
    noise, taps = streams(draft, 9)
    real = [0, 1, 3, 4, 7, 8]
    mask = torch.zeros(1, 13, dtype=torch.bool)
    mask[:, [*real, 9, 10, 11, 12]] = True
    assert close(step(draft, noise, taps, attention_mask=mask), step(draft, noise, taps[:, real]))


def test_training_rows_that_a_mask_leaves_out_are_not_seen() -> None:
    draft = dense_draft(*STACKS["mixed"])
    noise, taps = streams(draft, 9, blocks=2)
    anchors = torch.tensor([[4, 8]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1]])
    changed = taps.masked_fill(mask[..., None] == 0, 7.0)
    with_mask = step(draft, noise, taps, anchors=anchors, attention_mask=mask)
    assert torch.equal(with_mask, step(draft, noise, changed, anchors=anchors, attention_mask=mask))
    assert not close(with_mask, step(draft, noise, taps, anchors=anchors))


def test_a_shorter_last_block_decodes() -> None:
    draft = dense_draft(*STACKS["mixed"])
    noise, taps = streams(draft, 9)
    short = step(draft, noise[:, :2], taps)
    assert short.shape == (1, 2, 32)


def test_backends_agree() -> None:
    draft = dense_draft(*STACKS["all-options"])
    noise, taps = streams(draft, 11)
    sdpa = step(draft, noise, taps)
    draft.set_attn_implementation("eager")
    assert close(step(draft, noise, taps), sdpa)
