"""Where the rows of a call stand: positions, anchors and who sees whom, while training and while decoding."""

from typing import NamedTuple

import torch
from torch import Tensor

from draftc.runtime.visibility import NEVER, Visibility


class DraftInputError(ValueError):
    """A call that does not fit the draft; the message has the shapes."""


class Rows(NamedTuple):
    """Where the rows of a call stand: `positions [B, C+Q]`, `anchors [B, N]` as rows of the context, who sees whom.

    `kept [B, C]` marks the context rows that are no padding; None when none is.
    """

    positions: Tensor
    anchors: Tensor
    visibility: Visibility
    kept: Tensor | None


def fitting(name: str, given: Tensor, like: Tensor) -> Tensor:
    """Return `given` when it has the rows of `like [B, T]` for each row of the batch or for one; else raise."""
    if given.ndim != 2 or given.shape[0] not in (1, like.shape[0]) or given.shape[1] != like.shape[1]:
        raise DraftInputError(f"{name} {list(given.shape)} must be {list(like.shape)}")
    return given


def decoding_rows(block: Tensor, context: Tensor, past: int, attention_mask: Tensor | None) -> Rows:
    """Rows of a decoding step: one block after `past` kept rows and those of `context [B, C, H]`.

    Padding in `attention_mask [B, past+C+Q]` takes no position, so a padded row of the batch sees what it would alone.
    The block stands behind the last real row of the context: rows of a batch that bring fewer new ones than others have
    padding behind them.
    """
    batch, size = block.shape[:2]
    new = context.shape[1]
    total = past + new
    every = torch.arange(total + size, device=block.device).expand(batch, -1)
    if attention_mask is None:
        anchors = torch.full_like(every[:, :1], new)
        visibility = Visibility(every[:, total : total + 1], every[:, :total], size, everything=True)
        return Rows(every[:, past:], anchors, visibility, None)
    real = fitting("attention_mask", attention_mask, every)[:, :total].bool().expand(batch, -1)
    counted = real.long().cumsum(-1) - 1
    first = real.long().sum(-1, keepdim=True)
    positions = torch.cat([counted[:, past:].clamp(min=0), first + every[:, :size]], dim=1)
    numbered = torch.where(real[:, past:], every[:, 1 : new + 1], 0)
    anchors = torch.cat([numbered, numbered.new_zeros(batch, 1)], dim=1).amax(-1, keepdim=True)
    visibility = Visibility(first, torch.where(real, counted, NEVER), size, everything=False)
    return Rows(positions, anchors, visibility, real[:, past:])


def require_gaps(context: Tensor, starts: Tensor, gap: int) -> None:
    """Raise `DraftInputError` unless `gap` rows of zeros stand before each of `starts [B, N]` in `context [B, C, H]`.

    A layer that scans the context convolves over so many rows before each, which must be none of another document.
    """
    before = starts[..., None] - 1 - torch.arange(gap, device=starts.device)
    taken = context.any(-1).gather(1, before.clamp(min=0).flatten(1)).view_as(before)
    if bool((taken & (before >= 0)).any()):
        raise DraftInputError(
            f"a layer that scans the context convolves over {gap} rows: leave as many empty between two documents"
        )


def block_positions(anchors: Tensor, length: int, block_size: int) -> Tensor:
    """Positions `[B, length + N·block_size]`: context from 0, then blocks from their `anchors [B, N]` (dropped: 0)."""
    context = torch.arange(length, device=anchors.device).expand(anchors.shape[0], -1)
    slots = anchors.clamp(min=0)[..., None] + torch.arange(block_size, device=anchors.device)
    return torch.cat([context, slots.flatten(1)], dim=1)


def training_rows(
    block: Tensor,
    context: Tensor,
    anchors: Tensor,
    size: int,
    attention_mask: Tensor | None,
    starts: Tensor | None = None,
) -> Rows:
    """Rows of a training batch: blocks of `size` slots anchored at rows `anchors [B, N]` of `context [B, C, H]`.

    Rows that `attention_mask [B, C]` leaves out are seen by no block; where several documents share a row, a block
    sees its own only, the rows from `starts [B, N]` on.
    """
    batch, queries = block.shape[:2]
    if anchors.ndim != 2 or anchors.shape[0] != batch or anchors.shape[1] * size != queries:
        raise DraftInputError(
            f"anchors {list(anchors.shape)} and noise_embeds {list(block.shape[:2])} do not fit: "
            f"each anchor takes a block of {size} slots"
        )
    every = torch.arange(context.shape[1], device=block.device).expand(batch, -1)
    kept = None if attention_mask is None else fitting("attention_mask", attention_mask, every).bool()
    seen = every if kept is None else torch.where(kept, every, NEVER)
    positions = block_positions(anchors, context.shape[1], size)
    return Rows(positions, anchors, Visibility(anchors, seen, size, everything=False, starts=starts), kept)
