"""One cause, one error: which violations are only echoes of a misspelt key."""

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass

from draftc.schemas import load
from draftc.spec.foreign_keys import foreign_answer, reserved_for
from draftc.spec.nodes import Mapping, Node, Pointer, find
from draftc.spec.places import SELECTORS, scope_of
from draftc.spec.schema_errors import Schema, Violation
from draftc.spec.suggest import is_near_miss, nearest


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown key and the key of its mapping that it was meant to be, if that is evident."""

    violation: Violation
    meant: str | None


@dataclass(frozen=True, slots=True)
class Sifted:
    """The violations that are left, and the unknown keys with what they were meant to be."""

    others: tuple[Violation, ...]
    unknown: tuple[Unknown, ...]


def sift(root: Node, base: Pointer, found: MappingOf[Pointer, Violation]) -> Sifted:
    """Drop what a misspelt key or a block of another family already explains.

    A missing key goes when an unknown key of its mapping is its near miss. Everything at and below a mapping goes when
    an unknown key is the near miss of a key that selects a branch and that is not there.
    """
    selecting = _misspelt_selectors(root, base, found)
    closed = {one.violation.parent for one in selecting}
    blocks = {one.pointer for one in found.values() if one.keyword == "family"}
    left = [one for one in found.values() if not _is_below(one, closed, blocks)]
    unknown = (*selecting, *(Unknown(one, _meant(one, root, found)) for one in left if one.keyword == "unknown"))
    taken = {(*one.violation.parent, one.meant) for one in unknown if one.meant is not None}
    near = {one.pointer for one in left if one.keyword == "missing" and _has_near_miss(one, unknown)}
    others = (one for one in left if one.keyword != "unknown" and one.pointer not in taken | near)
    return Sifted(tuple(others), unknown)


def _is_below(one: Violation, closed: set[Pointer], blocks: set[Pointer]) -> bool:
    above = [one.pointer[:length] for length in range(len(one.pointer))]
    return one.pointer in closed or any(place in closed or place in blocks for place in above)


def _has_near_miss(missing: Violation, unknown: Iterable[Unknown]) -> bool:
    key = str(missing.pointer[-1])
    return any(
        one.violation.parent == missing.parent and is_near_miss(str(one.violation.pointer[-1]), key) for one in unknown
    )


def _meant(unknown: Violation, root: Node, found: MappingOf[Pointer, Violation]) -> str | None:
    """The key that an unknown one was meant to be: a missing one before one that may be left out."""
    key = str(unknown.pointer[-1])
    missing = [
        str(one.pointer[-1]) for one in found.values() if one.keyword == "missing" and one.parent == unknown.parent
    ]
    present = _keys(find(root, unknown.parent))
    absent = [name for name in unknown.schema.get("properties", {}) if name not in present]
    return nearest(key, missing) or nearest(key, absent)


def _misspelt_selectors(root: Node, base: Pointer, found: MappingOf[Pointer, Violation]) -> tuple[Unknown, ...]:
    places = {one.parent for one in found.values() if one.keyword in ("missing", "unknown")}
    return tuple(one for place in places for one in _selectors_at(root, base, place, found))


def _selectors_at(root: Node, base: Pointer, place: Pointer, found: MappingOf[Pointer, Violation]) -> Iterator[Unknown]:
    scope = scope_of((*base, *place))
    present = _keys(find(root, place))
    absent = [name for name in SELECTORS.get(scope, ()) if name not in present]
    for key in _unknown_keys(place, present, scope, found) if absent else ():
        if (
            reserved_for(key, scope) is None
            and (meant := nearest(key, absent)) is not None
            and _is_apt(key, meant, scope)
        ):
            yield Unknown(found.get((*place, key)) or Violation((*place, key), "unknown", False, {}), meant)


def _is_apt(key: str, meant: str, scope: str) -> bool:
    """Whether a foreign word stands for the selector; most foreign words only resemble one."""
    answer = foreign_answer(key, scope)
    return answer is None or f"`{meant}`" in answer


def _unknown_keys(
    place: Pointer, present: Iterable[str], scope: str, found: MappingOf[Pointer, Violation]
) -> list[str]:
    """The keys that no branch knows; without a branch the schema says nothing of them."""
    reported = [str(one.pointer[-1]) for one in found.values() if one.keyword == "unknown" and one.parent == place]
    known = _KEYS_OF_BRANCHES.get(scope, ())
    undecided = any(one.keyword == "missing" and one.parent == place for one in found.values()) and known
    silent = [key for key in present if undecided and key not in _known_to(known)]
    return list(dict.fromkeys((*reported, *silent)))


_KEYS_OF_BRANCHES = {
    "attention": ("extending",),
    "scaling": tuple(f"scaling_{name}" for name in ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")),
}


def _known_to(definitions: Iterable[str]) -> set[str]:
    schemas: dict[str, Schema] = load("layout-1")["$defs"]
    return {key for name in definitions for key in schemas[name]["properties"]}


def _keys(node: Node | None) -> tuple[str, ...]:
    return tuple(entry.name for entry in node.entries) if isinstance(node, Mapping) else ()
