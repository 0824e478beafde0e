"""What a layer keeps between decoding steps. Every write returns the value that is used next."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, LinearAttentionLayer

from draftc.runtime.kda.states import rows_before


def blank_state(context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """What a recurrence starts from before `context [B, C, H]`: zeros `[B, tail, H]` and `[B, heads, dim, dim]`.

    The rows have the dtype of `context`, the state at least float32.
    """
    batch, _, width = context.shape
    wide = torch.promote_types(context.dtype, torch.float32)
    return context.new_zeros(batch, tail, width), context.new_zeros(batch, heads, dim, dim, dtype=wide)


class NoMemory:
    """Keeps nothing: training, a step without a cache, and layers that have nothing to keep."""

    def get_seq_length(self) -> int:
        """Rows kept so far: none."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows after reading `query_length` more, and the number of the first one."""
        return query_length, 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return `k` and `v`, each `[B, g, C+Q, d]`, as they are."""
        return k, v

    def recall(self, context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
        """Return zeros for the rows before `context [B, C, H]` and for the state; see `blank_state`."""
        return blank_state(context, tail, heads, dim)

    def commit(self, states: Tensor, read: Tensor, anchors: Tensor, tail: int, rows: int) -> Tensor:  # noqa: ARG002 - keeps nothing
        """Return `states` as they are."""
        return states


class RecurrentMemory(CacheLayerMixin):
    """State of a recurrent layer after the verified rows, the last rows for its convolution, and a count of rows.

    Only context rows enter the state, so nothing has to be undone when a block is rejected: `crop` moves the counter
    and refuses to drop a verified row. Rows are counted as attention layers count them, block included.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.state: Tensor | None = None
        self.tail: Tensor | None = None
        self.length = 0
        self.unverified = 0

    def recall(self, context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
        """Return the `tail` rows `[B, tail, H]` before `context [B, C, H]`, and the state `[B, heads, dim, dim]`."""
        if self.state is None or self.tail is None:
            return blank_state(context, tail, heads, dim)
        return self.tail, self.state

    def commit(self, states: Tensor, read: Tensor, anchors: Tensor, tail: int, rows: int) -> Tensor:
        """Store `states [B, heads, dim, dim]`, those before `anchors [B, 1]`, and return them.

        `read [B, tail+C, H]` holds the recalled rows, then the context; the `tail` rows before each anchor are kept.
        Rows of a batch may have read less than C rows: what lies behind their anchor is padding. `rows` is C+Q.
        """
        self.state, self.tail = states, rows_before(read, anchors, tail)
        self.length += rows
        self.unverified += rows - (read.shape[1] - tail)
        return states

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` rows, all of them slots of a block; raises `ValueError` otherwise."""
        dropped = -tokens_to_remove
        if not 0 <= dropped <= self.unverified and self.length:
            raise ValueError(
                f"crop({tokens_to_remove}) on a recurrent state: only its {self.unverified} last rows can go"
            )
        self.length -= min(dropped, self.length)
        self.unverified -= min(dropped, self.unverified)

    def get_seq_length(self) -> int:
        """Rows read so far, block rows that were not cropped included."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows after reading `query_length` more, and the number of the first one."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """No limit: -1."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give every row of the batch the memory of row `beam_idx`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` of the batch."""
        if self.state is not None and self.tail is not None:
            self.state = self.state[indices.to(self.state.device)]
            self.tail = self.tail[indices.to(self.tail.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        if self.state is not None and self.tail is not None:
            self.state = self.state.repeat_interleave(repeats, dim=0)
            self.tail = self.tail.repeat_interleave(repeats, dim=0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: shapes come with the first `commit`."""

    def update(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - refused whole
        """Refuse keys and values with `TypeError`: this layer keeps a state."""
        raise TypeError("a recurrent layer keeps a state: it has no keys and values to update")


class StatelessLayer(LinearAttentionLayer):
    """Entry in a cache for a layer that keeps nothing. It counts no rows; transformers expects no count of its base."""

    is_croppable = True

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing to drop."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Nothing to repeat."""

    def batch_select_indices(self, indices: Tensor) -> None:
        """Nothing to select."""


Memory = NoMemory | RecurrentMemory | CacheLayerMixin


def fitted_layer(layer: object, kind: str) -> Any:
    """The cache layer that a draft layer of `kind` (`keys`, `state`, `none`) needs: `layer` itself where it fits.

    transformers makes a cache from `layer_types`, whose word for both recurrent kinds means a layer that would store
    unverified rows. Raises `TypeError` for a layer that has been written or cannot hold what `kind` keeps.
    """
    fits = {"keys": DynamicLayer, "state": RecurrentMemory, "none": StatelessLayer}[kind]
    if isinstance(layer, fits):
        return layer
    if kind == "keys":
        raise TypeError(f"{type(layer).__name__} cannot be cropped after a draft step: give a DynamicCache")
    return fits()


def memories(cache: Cache | None, kinds: Sequence[str]) -> tuple[Memory, ...]:
    """One memory per layer of the draft: those of `cache`, which is fitted to the draft on first sight.

    `kinds` says what each layer keeps: `keys`, a `state` or `none`. Sliding layers are told to keep what a later `crop`
    needs. Raises `ValueError` when the cache was made for another number of layers, `TypeError` for a static one.
    """
    if cache is None:
        return tuple(NoMemory() for _ in kinds)
    if not cache.layers:
        cache.layers.extend(DynamicLayer() for _ in kinds)
    if len(cache.layers) != len(kinds):
        raise ValueError(
            f"the cache has {len(cache.layers)} layers and the draft {len(kinds)}: make it from the draft's config"
        )
    fitted = [fitted_layer(layer, kind) for layer, kind in zip(cache.layers, kinds, strict=True)]
    cache.layers[:] = fitted
    cache.activate_past_recording()
    return tuple(NoMemory() if kind == "none" else layer for kind, layer in zip(kinds, fitted, strict=True))


class DraftCache(DynamicCache):
    """The memories of a draft, for decoding outside transformers' own loop.

    `DraftCache(config=draft.config)`; after each step `crop(-b)` drops the b slots of the block and keeps the context.
    """
