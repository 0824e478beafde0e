"""Rows of a batch that keep different numbers of tokens, right-aligned in one cache.

After a round every row of the batch keeps as many of the new cache rows as the target accepted. The caches stay as left
padding has them: row by row, what was kept moves to the right end, and padding grows on the left. So windows, which
count rows, and masks, which know left padding, mean for every row what they would mean for it alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from draftc.runtime.generation.errors import GenerationError

MOVABLE = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class Alignment:
    """Where the rows of a batch stand in a cache of `total` rows: row r behind `pads[r]` rows of padding."""

    def __init__(self, pads: Sequence[int]) -> None:
        self.pads = list(pads)
        self.total = 0

    def mask(self, fresh: int, behind: Sequence[int], after: int, device: torch.device) -> Tensor | None:
        """Real rows of the cache, of `fresh` new ones and of `after` ones that are all real, int64.

        `[B, total + fresh + after]`; `behind[r]` of the new ones are padding at the end. None where all are real.
        """
        if not any(self.pads) and not any(behind):
            return None
        end = self.total + fresh
        rows = torch.arange(end + after, device=device)
        first = torch.tensor(self.pads, device=device)[:, None]
        last = end - torch.tensor(list(behind), device=device)[:, None]
        return ((rows >= first) & ((rows < last) | (rows >= end))).long()

    def positions(self, fresh: int, device: torch.device) -> Tensor:
        """Positions `[B, fresh]` of the next rows; 0 in padding."""
        rows = torch.arange(self.total, self.total + fresh, device=device)
        return (rows - torch.tensor(self.pads, device=device)[:, None]).clamp(min=0)

    def settle(self, cache: Cache, fresh: int, behind: Sequence[int], dropped: int) -> None:
        """Drop what was not kept of the last rows that `cache` read: `fresh` rows, then `dropped` that nobody keeps.

        The last `behind[r]` of the `fresh` rows are not kept for row r, and become padding on the left.
        """
        if any(behind):
            for layer in cache.layers:
                if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
                    move_right(layer.keys, behind)
                    move_right(layer.values, behind)
        cache.crop(-dropped)
        self.total += fresh
        self.pads = [pad + more for pad, more in zip(self.pads, behind, strict=True)]

    def select(self, cache: Cache, kept: Sequence[int], device: torch.device) -> None:
        """Keep the rows `kept` of the batch only."""
        cache.batch_select_indices(torch.tensor(list(kept), device=device))
        self.pads = [self.pads[row] for row in kept]


def move_right(rows: Tensor, steps: Sequence[int]) -> None:
    """Move `rows [B, h, T, d]` along T, row r of the batch by `steps[r]`; what is left behind means nothing."""
    for row, by in enumerate(steps):
        if by:
            rows[row, :, by:] = rows[row, :, :-by].clone()


def require_movable(cache: Cache) -> None:
    """Raise `GenerationError` unless rows of `cache` can be moved, as batches of several prompts need."""
    for layer in cache.layers:
        if type(layer) not in MOVABLE:
            raise GenerationError(
                f"the target keeps {type(layer).__name__}, whose rows cannot move for each row of a batch on its own",
                "decode one prompt at a time",
            )
