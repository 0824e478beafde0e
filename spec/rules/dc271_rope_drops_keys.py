"""A rope is one value and is replaced whole, so a key that the replaced one had is gone unless it is named again."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.nodes import Mapping, Pointer, Scalar, find
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, distinct, finding, listed, number
from draftc.spec.rules.ropes import TOP, owners, turned

CODE = Code("DC271", "rope-drops-keys", Severity.WARNING)
DROPPABLE = ("partial_rotary_factor", "scaling")


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find ropes in use that replace another and lose its scaling or partial factor without a word."""
    yield from distinct(found for each in turned(parts) for found in _replacements(parts, each.name))


def _replacements(parts: Parts, attention: str) -> Iterator[Diagnostic]:
    """Compare the attention's rope with the one it would have had."""
    stated = list(owners(parts, attention))
    if not stated:
        return
    owner, place = stated[0]
    before = stated[1] if len(stated) > 1 else _inherited(parts, attention)
    if before is None:
        return
    replaced, old_place = before
    ours, theirs = find(parts.root, place), find(parts.root, old_place)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        lost = [key for key in DROPPABLE if ours.get(key) is None and _said(theirs, key)]
        if lost:
            yield _finding(parts, owner, place, replaced, old_place, {key: _said(theirs, key) for key in lost})


def _inherited(parts: Parts, attention: str) -> tuple[str, Pointer] | None:
    """The top-level rope, under the name of the base through which the attention would have had it."""
    if parts.attentions[attention].kind == "mla" or not parts.states(*TOP):
        return None
    owner = next(name for name, _ in owners(parts, attention))
    return parts.bases.get(owner, "the top level"), TOP


def _said(rope: Mapping, key: str) -> str:
    """What a rope says under `key`, in a word; empty when that is the default."""
    node = rope.get(key)
    if isinstance(node, Mapping):
        kind = node.get("rope_type")
        return number(kind.value) if isinstance(kind, Scalar) else ""
    return number(node.value) if isinstance(node, Scalar) and node.value not in (None, 1) else ""


def _finding(
    parts: Parts, owner: str, place: Pointer, replaced: str, old_place: Pointer, lost: dict[str, str]
) -> Diagnostic:
    words = [f"{key} {said}" for key, said in lost.items()]
    ways = [_way(key) for key in lost]
    return finding(
        CODE,
        f"the rope of {owner} replaces that of {replaced} and drops {listed(words)}",
        Fact("rope", owner, parts.span(*place)),
        [Fact(key, said, parts.span(*old_place, key)) for key, said in lost.items()],
        f"a rope is replaced whole; state {listed(way for way, _ in ways)} to mean it,"
        f" or repeat {listed(word for _, word in ways)}",
    )


def _way(key: str) -> tuple[str, str]:
    return ("`scaling: null`", "the scaling") if key == "scaling" else (f"`{key}: 1.0`", "the partial factor")
