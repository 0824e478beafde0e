"""Prompts of a batch, padded on the left, and the limits of what follows them."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftc.runtime.generation.errors import BeyondPositionsWarning, PromptError


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Prompts `tokens [B, P]`, row r behind `pads[r]` rows of padding; `texts[r]` is row r without it."""

    tokens: Tensor
    pads: tuple[int, ...]
    texts: tuple[tuple[int, ...], ...]


def padded_prompts(input_ids: Tensor, attention_mask: Tensor | None, pad_token_id: int) -> Prompts:
    """`input_ids [B, P]` with the rows that `attention_mask [B, P]` leaves, wherever they stand, moved to the right.

    Raises `PromptError` for other shapes, and for a row without tokens.
    """
    if input_ids.ndim != 2 or input_ids.is_floating_point():
        raise PromptError(f"input_ids {list(input_ids.shape)} of {input_ids.dtype} must be token ids [B, P]")
    real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    if real.shape != input_ids.shape:
        raise PromptError(f"attention_mask {list(real.shape)} must be {list(input_ids.shape)}, as input_ids is")
    texts = tuple(tuple(row[mask].tolist()) for row, mask in zip(input_ids, real, strict=True))
    if not texts or not all(texts):
        raise PromptError("a prompt has no tokens", "start it with the target's beginning-of-sequence token")
    width = max(map(len, texts))
    pads = tuple(width - len(text) for text in texts)
    rows = [[pad_token_id] * pad + list(text) for pad, text in zip(pads, texts, strict=True)]
    return Prompts(torch.tensor(rows, device=input_ids.device), pads, texts)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a row ends: behind its first token in `stop_token_ids`, and at `max_new_tokens`, which is positive."""

    max_new_tokens: int
    stop_token_ids: frozenset[int]

    def cut(self, tokens: Sequence[int], produced: int) -> tuple[int, ...]:
        """What counts of `tokens`, when `produced` were there before."""
        within = tuple(tokens[: self.max_new_tokens - produced])
        ends = [index for index, token in enumerate(within) if token in self.stop_token_ids]
        return within[: ends[0] + 1] if ends else within

    def reached(self, tokens: Sequence[int]) -> bool:
        """Whether a row with the new `tokens` is finished."""
        return len(tokens) >= self.max_new_tokens or tokens[-1] in self.stop_token_ids


def limits_of(max_new_tokens: int, stop_token_ids: int | Collection[int] | None) -> Limits:
    """Limits from what a caller gives. Raises `PromptError` when nothing may be generated."""
    if max_new_tokens < 1:
        raise PromptError(f"max_new_tokens is {max_new_tokens}", "ask for one token at least")
    stops = [stop_token_ids] if isinstance(stop_token_ids, int) else stop_token_ids or ()
    return Limits(max_new_tokens, frozenset(int(token) for token in stops))


def warn_beyond_positions(target: Any, prompts: Prompts, limits: Limits) -> None:
    """Say with a `BeyondPositionsWarning` when the longest text may outgrow the positions of `target`."""
    known = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    longest = max(map(len, prompts.texts))
    if known is not None and longest + limits.max_new_tokens > known:
        warnings.warn(
            f"a prompt of {longest} tokens and max_new_tokens {limits.max_new_tokens} may reach "
            f"{longest + limits.max_new_tokens} positions; the target was made for {known}",
            BeyondPositionsWarning,
            stacklevel=4,
        )
