"""Who sees whom: the one predicate from which every mask is made, dense or in tiles, in training and in decoding."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Queries(NamedTuple):
    """Rows that ask, one of each field per query; shapes broadcast against `Keys`.

    `block` is the number of the query's block (-2: dropped), `anchor` the position of its block's
    anchor, `position` its own (anchor + slot), `start` the first position of its document, None without packing.
    """

    block: Tensor
    anchor: Tensor
    position: Tensor
    start: Tensor | None


def queries_like(query: Queries, change: Callable[[Tensor], Tensor]) -> Queries:
    """`query` with `change` applied to every field that is there."""
    start = None if query.start is None else change(query.start)
    return Queries(change(query.block), change(query.anchor), change(query.position), start)


class Keys(NamedTuple):
    """Rows that are seen. `block` is -1 for a context row, the number of the block for a row of a block."""

    block: Tensor
    position: Tensor


def sees(query: Queries, key: Keys, window: int | None, is_causal: bool) -> Tensor:
    """Whether each query may see each key, bool, in the shape that the fields broadcast to.

    A context key is seen when it stands before the anchor (and not before the document), a key of a block when it is
    of the query's own block and, if `is_causal`, not later than the query. A window of W leaves the keys that are less
    than W positions away, the query's own included. A dropped block (block -2, anchor -1) sees nothing.
    """
    before = (key.block == -1) & (key.position < query.anchor)
    if query.start is not None:
        before = before & (key.position >= query.start)
    own = key.block == query.block
    if is_causal:
        own = own & (key.position <= query.position)
    if window is None:
        return before | own
    near = (key.position > query.position - window) & (key.position < query.position + window)
    return (before | own) & near
