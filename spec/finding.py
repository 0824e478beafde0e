"""A diagnostic together with the places of the layout that it breaks."""

from collections.abc import Iterable
from dataclasses import dataclass

from draftc.spec.diagnostic import Diagnostic
from draftc.spec.nodes import Node, Pointer, walk


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnostic at `pointer`; for a missing key the pointer ends in that key.

    `also` holds the other places that the finding breaks: where the same node is reached through an alias, and the
    key that a misspelt one was meant to be.
    """

    pointer: Pointer
    diagnostic: Diagnostic
    also: tuple[Pointer, ...] = ()


def broken_pointers(root: Node, findings: Iterable[Finding]) -> frozenset[Pointer]:
    """Return every place whose value is not to be trusted: those of `findings`, and the nodes that the reader refused.

    `("hidden_size",)` is there when hidden_size is missing, misspelt, or of the wrong type. A mapping is there itself
    only when its shape as a whole is unknown; ask `is_whole` whether anything at or below a place is broken.
    """
    refused = {pointer for pointer, node in walk(root) if node.faulty}
    reported = {place for found in findings for place in (found.pointer, *found.also)}
    return frozenset(refused | reported)


def is_whole(broken: Iterable[Pointer], *pointer: str | int) -> bool:
    """Whether nothing at, below or above `pointer` is among `broken`."""
    return not any(_nested(place, pointer) for place in broken)


def _nested(one: Pointer, other: Pointer) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]
