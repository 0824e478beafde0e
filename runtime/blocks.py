"""The training batch of a draft: where blocks stand, and what their slots hold."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.rows import block_positions

DROPPED = -1


class NoAnchorError(ValueError):
    """No row of the batch has two supervised tokens in a row, so no block can be anchored."""


@dataclass(frozen=True, slots=True)
class DraftBlocks:
    """N blocks of b slots for every row of the batch.

    `anchors [B, N]` int64 are positions in the sequence, ascending, `DROPPED` (-1) last where a row has fewer blocks.
    `noise_ids [B, N·b]` are the tokens to embed, `position_ids [B, S + N·b]` the positions of context and slots.
    """

    anchors: Tensor
    noise_ids: Tensor
    position_ids: Tensor

    @property
    def kept(self) -> Tensor:
        """`[B, N]` bool: blocks that are no padding."""
        return self.anchors != DROPPED


def anchor_candidates(loss_mask: Tensor) -> Tensor:
    """Positions that may anchor a block, `[B, S-1]` bool: supervised, and so is the next token (`loss_mask [B, S]`)."""
    supervised = loss_mask > 0.5
    return supervised[:, :-1] & supervised[:, 1:]


def sample_anchors(loss_mask: Tensor, num_anchors: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw anchors uniformly without replacement among the candidates of each row.

    Args:
        loss_mask: `[B, S]`, above 0.5 where a token is supervised.
        num_anchors: the most blocks of a row.
        generator: on the device of `loss_mask`.

    Returns:
        `[B, N]` int64, ascending, then `DROPPED`; N is `num_anchors`, or the most candidates of a row if fewer.

    Raises:
        NoAnchorError: no row has a candidate.

    """
    candidates = anchor_candidates(loss_mask)
    width = min(num_anchors, int(candidates.sum(-1).max()) if candidates.numel() else 0)
    if width < 1:
        raise NoAnchorError("a block needs two supervised tokens in a row; this batch has none (or num_anchors is 0)")
    keys = torch.rand(candidates.shape, generator=generator, device=loss_mask.device)
    drawn = keys.masked_fill(~candidates, 2.0).topk(width, dim=-1, largest=False)
    never = torch.where(drawn.values > 1.0, candidates.shape[-1], drawn.indices).sort(dim=-1).values
    return never.masked_fill(never == candidates.shape[-1], DROPPED)


def noise_ids(input_ids: Tensor, anchors: Tensor, block_size: int, mask_token_id: int) -> Tensor:
    """Tokens of the slots: the anchor's own, then mask tokens; all mask in a dropped block.

    `input_ids [B, S]` and `anchors [B, N]` give `[B, N·block_size]` int64.
    """
    first = input_ids.gather(1, anchors.clamp(min=0)).masked_fill(anchors == DROPPED, mask_token_id)
    rest = first.new_full((*first.shape, block_size - 1), mask_token_id)
    return torch.cat([first[..., None], rest], dim=-1).flatten(1)


def sample_blocks(
    input_ids: Tensor,
    loss_mask: Tensor,
    num_anchors: int,
    block_size: int,
    mask_token_id: int,
    generator: torch.Generator | None = None,
) -> DraftBlocks:
    """Draw the blocks of a batch `input_ids [B, S]`; see `sample_anchors`, which may raise `NoAnchorError`."""
    anchors = sample_anchors(loss_mask, num_anchors, generator)
    tokens = noise_ids(input_ids, anchors, block_size, mask_token_id)
    return DraftBlocks(anchors, tokens, block_positions(anchors, input_ids.shape[1], block_size))
