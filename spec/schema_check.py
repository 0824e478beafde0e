"""The shape of a layout against its schema: DC101 to DC111, one error per cause."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from draftc.schemas import load
from draftc.spec.diagnostic import Diagnostic
from draftc.spec.finding import Finding
from draftc.spec.near_misses import sift
from draftc.spec.nodes import Mapping, Node, Pointer, Scalar, Sequence, plain
from draftc.spec.schema_errors import Schema, Violation, violations
from draftc.spec.shape_messages import diagnose
from draftc.spec.shape_place import Place
from draftc.spec.span import Span
from draftc.spec.unknown_keys import unknown_key


def check_schema(root: Mapping) -> tuple[Finding, ...]:
    """Return what the schema refuses in a layout, sorted by place.

    Nodes that the reader reported (`faulty`) get nothing more; `broken_pointers` names what is not to be trusted.
    """
    return check_subschema(root, load("layout-1"))


def check_subschema(node: Node, schema: Schema | bool, pointer: Pointer = ()) -> tuple[Finding, ...]:
    """Return what `schema` refuses in `node`, which stands at `pointer` of its layout.

    `schema` is a part of the layout schema; its `$ref` are looked up there. The nodes below may come from several
    places: each finding stands where its node is written.
    """
    found = {
        place: violation
        for place, violation in violations(plain(node), schema).items()
        if not _is_reported(node, violation)
    }
    sifted = sift(node, pointer, found) if found else None
    if sifted is None:
        return ()
    said = [_say(Place(node, pointer, violation), diagnose) for violation in sifted.others]
    said += [_say_unknown(Place(node, pointer, one.violation), one.meant) for one in sifted.unknown]
    return tuple(sorted(_merged(said), key=lambda one: one.diagnostic.order))


def _is_reported(root: Node, violation: Violation) -> bool:
    """Whether the reader has already said what is wrong here; a faulty mapping may only seem to lack a key."""
    *above, here = _path(root, violation.pointer)
    if violation.keyword == "missing":
        return here.faulty
    is_of_key = violation.keyword in ("unknown", "family", "name")
    return (here.faulty and not is_of_key) or any(node.faulty and isinstance(node, Scalar) for node in above)


def _path(root: Node, pointer: Pointer) -> Iterator[Node]:
    """Yield the nodes from the root down to `pointer`, as far as they exist."""
    here: Node | None = root
    for step in (*pointer, None):
        if here is None:
            return
        yield here
        here = _child(here, step)


def _child(node: Node, step: str | int | None) -> Node | None:
    if isinstance(node, Mapping) and step is not None:
        return node.get(str(step))
    if isinstance(node, Sequence) and isinstance(step, int):
        return node.items[step]
    return None


@dataclass(frozen=True, slots=True)
class _Said:
    """A finding, how many aliases lead to its place, and what it says of which node, whatever way leads there."""

    finding: Finding
    aliases: int
    identity: tuple[str, Span, str]


def _say(place: Place, words: Callable[[Place], Diagnostic], also: tuple[Pointer, ...] = ()) -> _Said:
    aliases = [alias for node in _path(place.root, place.violation.pointer) for alias in node.aliases]
    diagnostic = words(place)
    notes = tuple(f"reached through the alias at {alias}" for alias in aliases)
    values = (*diagnostic.values, *_values(place))
    finding = Finding(place.pointer, replace(diagnostic, notes=(*diagnostic.notes, *notes), values=values), also)
    node = place.mapping if place.violation.keyword == "missing" else place.node
    return _Said(finding, len(aliases), (diagnostic.code.number, node.span, place.key))


def _say_unknown(place: Place, meant: str | None) -> _Said:
    also = ((*place.pointer[:-1], meant),) if meant is not None else ()
    return _say(place, partial(unknown_key, meant_key=meant), also)


def _values(place: Place) -> tuple[tuple[str, object], ...]:
    value = ((place.name, place.node.value),) if isinstance(place.node, Scalar) else ()
    limit = place.violation.limit
    plain_limit = isinstance(limit, int | float | str) and place.violation.keyword not in ("missing", "unknown")
    return (*value, (place.violation.keyword, limit)) if plain_limit else value


def _merged(said: list[_Said]) -> Iterable[Finding]:
    """Say once what is found again through an alias, with the notes of all ways that lead there."""
    merged: dict[object, Finding] = {}
    for one in sorted(said, key=lambda one: one.aliases):
        first = merged.get(one.identity)
        merged[one.identity] = one.finding if first is None else _together(first, one.finding)
    return merged.values()


def _together(first: Finding, again: Finding) -> Finding:
    notes = tuple(dict.fromkeys((*first.diagnostic.notes, *again.diagnostic.notes)))
    also = tuple(dict.fromkeys((*first.also, again.pointer, *again.also)))
    return Finding(first.pointer, replace(first.diagnostic, notes=notes), also)
