"""What every layer of one forward may see, asked once and answered in the form that its backend reads."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from draftc.runtime.sees import Keys, Queries, queries_like, sees
from draftc.runtime.tiles import tile_mask

NEVER = 2**63 - 1  # position of a row that nobody sees: no anchor is behind it
MASK_FORMS = {"eager": "dense", "sdpa": "dense", "flex": "tiles", "flash": "band"}


class ViewError(ValueError):
    """A question about visibility that has no answer, or a view that a backend cannot read."""


class Band(NamedTuple):
    """Visibility as a band of diagonals, last query on last key: as many keys to the left and right; -1 for all."""

    left: int
    right: int


class View(NamedTuple):
    """What one layer may see, made for the backend that runs it.

    `mask` is a bool tensor `[B, 1, Q, K]` (True: may attend), a `BlockMask`, a `Band`, or None when nothing is hidden.
    `dropout` is the share of attention weights to drop, 0.0 outside training. `live` `[B, Q]` bool marks the queries
    that see something; None when all do. `plan` is the `ScanPlan` of this batch for KDA layers that read context.
    """

    mask: Tensor | BlockMask | Band | None
    backend: str
    dropout: float
    live: Tensor | None
    plan: Any = None


def silence(out: Tensor, view: View) -> Tensor:
    """Zero the rows of `out [B, Q, H]` that belong to queries that see nothing, a projection's bias included."""
    if view.live is None:
        return out
    return torch.where(view.live[..., None], out, 0)


class Visibility:
    """Who sees whom in one forward; `view` answers for one layer.

    `anchors` `[B, N]` are the positions of the blocks' anchors, -1 for a dropped block; `context` `[B, S]` the
    positions of all context rows, `NEVER` for padding; both int64. A block has `size` slots; its slot k stands at its
    anchor + k. `everything` promises what cannot be known without looking at data: one block that stands right behind
    the context, whose rows follow each other and are all real. `starts` `[B, N]` are the first positions of the blocks'
    documents when several are packed into a row.

    Raises `ViewError` when shapes do not fit or `everything` is promised for more than one block.
    """

    def __init__(
        self, anchors: Tensor, context: Tensor, size: int, everything: bool = False, starts: Tensor | None = None
    ) -> None:
        if anchors.ndim != 2 or context.ndim != 2 or anchors.shape[0] != context.shape[0]:
            raise ViewError(
                f"anchors {list(anchors.shape)} and context {list(context.shape)} must be [B, N] and [B, S]"
            )
        if starts is not None and starts.shape != anchors.shape:
            raise ViewError(f"starts {list(starts.shape)} must have the shape of anchors, {list(anchors.shape)}")
        if everything and (anchors.shape[1] != 1 or starts is not None):
            raise ViewError(f"{anchors.shape[1]} blocks, or documents, cannot promise that nothing is hidden")
        self.anchors = anchors
        self.context = context
        self.size = size
        self.everything = everything
        self.starts = starts
        self.live = None if everything else self.per_slot(anchors >= 0)
        self.masks: dict[tuple[str, int | None, bool, int], Tensor | BlockMask | Band] = {}

    def per_slot(self, blocks: Tensor) -> Tensor:
        """Repeat `blocks [B, N]` for every slot: `[B, N * size]`."""
        return blocks[..., None].expand(-1, -1, self.size).flatten(1)

    def queries(self) -> Queries:
        """The rows of all blocks, fields of `[B, Q]`; the block of a dropped one is -2."""
        slots = torch.arange(self.size, device=self.anchors.device)
        numbers = torch.arange(self.anchors.shape[1], device=self.anchors.device)
        return Queries(
            block=self.per_slot(torch.where(self.anchors >= 0, numbers, -2)),
            anchor=self.per_slot(self.anchors),
            position=(self.anchors[..., None] + slots).flatten(1),
            start=None if self.starts is None else self.per_slot(self.starts),
        )

    def keys(self, rows: int) -> Keys:
        """The last `rows` context rows, then the rows of all blocks: `block` `[K]`, `position` `[B, K]`."""
        numbers = torch.arange(self.anchors.shape[1] * self.size, device=self.anchors.device) // self.size
        kept = self.context[:, self.context.shape[1] - rows :]
        return Keys(
            block=torch.cat([numbers.new_full((rows,), -1), numbers]),
            position=torch.cat([kept, self.queries().position], dim=1),
        )

    def hides_nothing(self, window: int | None, is_causal: bool, rows: int) -> bool:
        """Whether every query is known to see every key, without looking at data."""
        ordered = is_causal and self.size > 1
        return self.everything and not ordered and (window is None or rows + self.size <= window)

    def dense(self, window: int | None, is_causal: bool, rows: int) -> Tensor:
        """The predicate as bool `[B, 1, Q, rows + Q]`, True where a query may attend."""
        query = queries_like(self.queries(), lambda field: field[..., None])
        key = self.keys(rows)
        return sees(query, Keys(key.block, key.position[:, None]), window, is_causal)[:, None]

    def tiles(self, window: int | None, is_causal: bool, rows: int) -> BlockMask:
        """The predicate as a block mask of flex attention over `Q` queries and `rows + Q` keys."""
        return tile_mask(self.queries(), self.keys(rows), rows, self.size, window, is_causal)

    def band(self, window: int | None, is_causal: bool) -> Band:
        """The predicate as a band; right only where `everything` holds, since positions then count rows."""
        left = -1 if window is None else window - 1
        ahead = -1 if window is None else min(window, self.size) - 1
        return Band(left, 0 if is_causal else ahead)

    def mask(self, form: str, window: int | None, is_causal: bool, rows: int) -> Tensor | BlockMask | Band:
        """The predicate in the `form` asked for (dense, tiles, band), made once per question."""
        question = (form, window, is_causal, rows)
        if question not in self.masks:
            if form == "band":
                self.masks[question] = self.band(window, is_causal)
            else:
                make = self.tiles if form == "tiles" else self.dense
                self.masks[question] = make(window, is_causal, rows)
        return self.masks[question]

    def view(self, window: int | None, is_causal: bool, rows: int, backend: str, dropout: float = 0.0) -> View:
        """What a layer with `window` and `is_causal` sees of the last `rows` context rows and of the blocks.

        A band cannot say which rows are padding, nor whose block a key is of: where such rows may be, `flash` is
        answered with a dense mask for `sdpa`. Backends of KDA read no mask. Raises `ViewError` for a window below 1,
        for more rows than there are, and for a backend that is not known.
        """
        if window is not None and window < 1:
            raise ViewError(f"a window of {window} positions lets a query see nothing, itself included")
        if not 0 <= rows <= self.context.shape[1]:
            raise ViewError(f"{rows} context rows were asked for; the context has {self.context.shape[1]}")
        if backend.startswith("kda_"):
            return View(None, backend, dropout, self.live)
        if backend not in MASK_FORMS:
            raise ViewError(f"attention backend {backend!r} is none of {', '.join(MASK_FORMS)}")
        if self.hides_nothing(window, is_causal, rows):
            return View(None, backend, dropout, None)
        if backend == "flash" and not self.everything:
            backend = "sdpa"
        return View(self.mask(MASK_FORMS[backend], window, is_causal, rows), backend, dropout, self.live)
