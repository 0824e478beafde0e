"""The training blocks of a draft: where they stand, and what their slots hold and predict."""

from dataclasses import dataclass

import torch
from torch import Tensor

DROPPED = -1


class NoAnchorError(ValueError):
    """No two supervised tokens in a row, so no block can be anchored."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How blocks are cut from a document.

    `num_anchors` is the most blocks of a document, `block_size` the slots of each, of which `steps` predict something:
    step i of the block anchored at a predicts the token at a + 1 + i from that at a + i.
    """

    num_anchors: int
    block_size: int
    mask_token_id: int
    steps: int


def anchor_candidates(loss_mask: Tensor) -> Tensor:
    """Positions of `loss_mask [..., S]` that may anchor a block, `[..., S-1]`: supervised, and so is the next."""
    supervised = loss_mask > 0.5
    return supervised[..., :-1] & supervised[..., 1:]


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


def ahead(values: Tensor, anchors: Tensor, count: int) -> Tensor:
    """The `count` entries of `values [B, S]` from each of `anchors [B, N]` on: `[B, N, count]`, zero past the end.

    Dropped blocks are zero too.
    """
    places = anchors[..., None] + torch.arange(count, device=anchors.device)
    inside = (places < values.shape[1]) & (anchors != DROPPED)[..., None]
    flat = places.clamp(0, values.shape[1] - 1).flatten(1)
    return torch.where(inside, values.gather(1, flat).view_as(places), 0)
