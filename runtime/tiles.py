"""Block masks of flex attention, built from anchors in tiles, without ever making the dense mask.

A tile of 128 queries by 128 keys is skipped, full (every pair is visible, the kernel asks nothing) or partial (the
kernel asks the predicate). What one query sees are two intervals: positions of the context, and rows of its own block.
So each query is compared with the ends of each tile, Q x K/128 comparisons, and the answers are joined over the
queries of a tile.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from draftc.runtime.sees import Keys, Queries, queries_like, sees

TILE = 128
FAR = 2**31 - 1  # what the position that nobody sees becomes in 32 bits


def narrow(positions: Tensor) -> Tensor:
    """Positions in 32 bits, which kernels compare faster; those beyond become `FAR`."""
    return positions.clamp(max=FAR).int()


class TileEnds(NamedTuple):
    """What the context rows of each tile of keys span, `[B, T]` each: a tile without any has first FAR and last -1.

    `first` and `last` are the ends of the positions that can be seen, `greatest` counts the others as FAR.
    """

    first: Tensor
    last: Tensor
    greatest: Tensor


def tile_ends(context: Tensor, tiles: int) -> TileEnds:
    """Ends of `context [B, C]`, 32-bit positions, in each of `tiles` tiles."""
    pad = (0, tiles * TILE - context.shape[1])
    known = torch.where(context == FAR, -1, context)
    return TileEnds(
        first=F.pad(context, pad, value=FAR).unflatten(1, (tiles, TILE)).amin(-1),
        last=F.pad(known, pad, value=-1).unflatten(1, (tiles, TILE)).amax(-1),
        greatest=F.pad(context, pad, value=-1).unflatten(1, (tiles, TILE)).amax(-1),
    )


def reach_context(query: Queries, ends: TileEnds, window: int | None) -> tuple[Tensor, Tensor]:
    """Whether each query sees some, and all, of the context rows of each tile: two `[B, Q, T]` bool."""
    first, last, greatest = (end[:, None] for end in ends)
    low = torch.zeros_like(query.anchor) if query.start is None else query.start
    if window is not None:
        low = torch.maximum(low, query.position - window + 1)
    low, high = low[..., None], query.anchor[..., None] - 1
    some = (low <= high) & (first <= high) & (last >= low)
    return some, (first >= low) & (greatest <= high)


def reach_block(
    query: Queries, starts: Tensor, rows: int, size: int, window: int | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Whether each query sees some, and all, of the block rows of each tile: two `[B, Q, T]` bool.

    Block rows stand behind `rows` context rows, `size` to a block; `starts [T]` are the first rows of the tiles.
    """
    number = torch.arange(query.position.shape[1], device=starts.device)
    slot = number % size
    base = rows + number - slot
    low = base if window is None else base + (slot - window + 1).clamp(min=0)
    reach = size - 1 if window is None else (slot + window - 1).clamp(max=size - 1)
    high = base + (slot if is_causal else reach)
    low, high, kept = low[:, None], high[:, None], (query.block >= 0)[..., None]
    end = starts + TILE - 1
    some = kept & (low <= end) & (high >= starts)
    every = kept & (low <= starts.clamp(min=rows)) & (high >= end)
    return some, every | (end < rows)


def ordered_tiles(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Counts `[B, 1, S]` and columns `[B, 1, S, T]`, int32, of `chosen [B, S, T]` bool: chosen columns first."""
    marks = chosen[:, None].int()
    columns = marks.argsort(dim=-1, descending=True, stable=True)
    return marks.sum(-1, dtype=torch.int32), columns.int()


def pair_predicate(query: Queries, key: Keys, window: int | None, is_causal: bool) -> Callable[..., Tensor]:
    """The predicate as flex attention asks it: of one batch row, head, query row and key row.

    `query` has fields of `[B, Q]`; `key.block` is `[K]` and `key.position` `[B, K]`.
    """
    block, anchor, position, start = query
    key_block, key_position = key

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:  # noqa: ARG001 - every head sees the same
        first = None if start is None else start[b, q]
        asks = Queries(block[b, q], anchor[b, q], position[b, q], first)
        return sees(asks, Keys(key_block[kv], key_position[b, kv]), window, is_causal)

    return visible


def tile_mask(query: Queries, key: Keys, rows: int, size: int, window: int | None, is_causal: bool) -> BlockMask:
    """The block mask of `sees` for queries in blocks of `size` and keys of `rows` context rows, then the same blocks.

    `query` has fields of `[B, Q]`; `key.block` is `[K]` and `key.position` `[B, K]`. The lists of tiles are those that
    `create_block_mask` finds; where positions of a tile are not consecutive a tile may be listed as partial in vain.
    """
    query = queries_like(query, narrow)
    key = Keys(narrow(key.block), narrow(key.position))
    queries, keys = query.position.shape[1], key.position.shape[1]
    tiles, strips = -(-keys // TILE), -(-queries // TILE)
    starts = torch.arange(tiles, device=key.position.device) * TILE
    some_context, all_context = reach_context(query, tile_ends(key.position[:, :rows], tiles), window)
    some_block, all_block = reach_block(query, starts, rows, size, window, is_causal)
    inside = starts + TILE <= keys
    pad = (0, 0, 0, strips * TILE - queries)
    some = F.pad(some_context | some_block, pad).unflatten(1, (strips, TILE)).any(2)
    full = F.pad(all_context & all_block & inside, pad).unflatten(1, (strips, TILE)).all(2)
    return BlockMask.from_kv_blocks(
        *ordered_tiles(some & ~full),
        *ordered_tiles(full),
        BLOCK_SIZE=TILE,
        mask_mod=pair_predicate(query, key, window, is_causal),
        seq_lengths=(queries, keys),
    )
