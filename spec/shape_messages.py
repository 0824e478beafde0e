"""What is said of each violation of the schema (DC101 to DC111)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from draftc.schemas import load
from draftc.spec import codes
from draftc.spec.diagnostic import Diagnostic, Label
from draftc.spec.foreign_keys import foreign_value
from draftc.spec.nodes import Mapping, Node, Scalar, find, key_at
from draftc.spec.nodes import Sequence as NodeSequence
from draftc.spec.places import named
from draftc.spec.shape_place import Place
from draftc.spec.span import Span
from draftc.spec.spelling import TYPES, described, meant, short, shown
from draftc.spec.suggest import did_you_mean

_ALIKE = 60.0  # WRatio for a choice among a few values, where a wrong guess costs little


def diagnose(place: Place) -> Diagnostic:
    """Return the diagnostic of one violation."""
    return _MESSAGES.get(place.violation.keyword, _length)(place)


def _missing(place: Place) -> Diagnostic:
    where, message = _lacking(place)
    return Diagnostic(codes.MISSING_KEY, message, where, help=_how_to_add(place))


def _lacking(place: Place) -> tuple[Span, str]:
    key = None if place.mapping.aliases else key_at(place.root, place.violation.parent)
    where = key.span if key else _beginning(place.mapping)
    if place.owner.scope == "layout":
        return where, f"{place.key} is missing"
    if place.owner.scope == "attention" and place.key in ("kind", "extends"):
        return where, f"{place.owner.words} states neither kind nor extends"
    return where, f"{place.owner.words} states no {place.key}"


def _beginning(node: Node) -> Span:
    entries = node.entries if isinstance(node, Mapping) else ()
    return entries[0].key.span if entries else node.span


def _how_to_add(place: Place) -> str:
    if place.key in ("kind", "extends"):
        return "add `kind` (gqa, mha, mla or kda) and the dimensions of that kind, or `extends: NAME`"
    schema = _schema_of_key(place)
    if "examples" not in schema:
        return f"add `{place.key}`"
    description = str(schema.get("description", "")).rstrip(".")
    reason = f" ({description[0].lower()}{description[1:]})" if description else ""
    return f"add for example `{place.key}: {flow(schema['examples'][0])}`{reason}"


def _schema_of_key(place: Place) -> dict[str, Any]:
    own = place.violation.schema.get("properties", {}).get(place.key)
    if not isinstance(own, dict):
        block = load("layout-1")["properties"].get(str(place.pointer[0]), {})
        own = block.get("properties", {}).get(place.key)
    if not isinstance(own, dict):
        own = load("layout-1")["properties"].get(place.key)
    return own if isinstance(own, dict) else {}


def flow(value: object) -> str:
    """Return a plain value as it is written in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _type(place: Place) -> Diagnostic:
    limit = place.violation.limit
    types = [limit] if isinstance(limit, str) else list(limit)
    wanted = " or ".join(TYPES[name] for name in types)
    message = f"{place.name} must be {wanted}, not {described(place.node)}"
    help_text = meant(place.node, types) or _list_example(place, types)
    return Diagnostic(codes.WRONG_TYPE, message, place.node.span, help=help_text)


def _list_example(place: Place, types: Sequence[str]) -> str:
    """How a list is written; an example of a single value would only invite to copy it."""
    return _for_example(place) if "array" in types else ""


def _for_example(place: Place) -> str:
    """An example of the key's schema; nothing for what has no entry of its own in the schema."""
    schema = place.violation.schema if "examples" in place.violation.schema else _schema_of_key(place)
    return f"write for example `{flow(schema['examples'][0])}`" if "examples" in schema else ""


def _enum(place: Place) -> Diagnostic:
    known = tuple(str(value) for value in place.violation.limit)
    choice = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
    message = f"{place.name} {shown(place.node)} is not {choice}"
    help_text = _did_you_mean_value(place.node, known) or (_for_example(place) if len(known) == 1 else "")
    return Diagnostic(codes.UNKNOWN_VALUE, message, place.node.span, help=help_text)


def _did_you_mean_value(node: Node, known: Sequence[str]) -> str:
    if not isinstance(node, Scalar):
        return ""
    foreign = foreign_value(node.text, tuple(known))
    return f"did you mean `{foreign}`?" if foreign else did_you_mean(node.text, known, _ALIKE)


def _const(place: Place) -> Diagnostic:
    limit = place.violation.limit
    message = f"{place.name} {shown(place.node)} is not {flow(limit)}, the only version there is"
    return Diagnostic(codes.UNKNOWN_VALUE, message, place.node.span, help=f"write `{place.name}: {flow(limit)}`")


_BOUNDS = {
    "minimum": "is below {}",
    "maximum": "is above {}",
    "exclusiveMinimum": "is not above {}",
    "exclusiveMaximum": "is not below {}",
    "multipleOf": "is not a multiple of {}",
}


def _bound(place: Place) -> Diagnostic:
    words = _BOUNDS[place.violation.keyword].format(flow(place.violation.limit))
    help_text = f"it must be {_range(place.violation.schema)}"
    return Diagnostic(codes.OUT_OF_BOUNDS, f"{place.name} {shown(place.node)} {words}", place.node.span, help=help_text)


def _range(schema: Any) -> str:
    words = (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    )
    parts = [f"{word} {flow(schema[keyword])}" for keyword, word in words if keyword in schema]
    parts += [f"a multiple of {schema['multipleOf']}"] if "multipleOf" in schema else []
    return " and ".join(parts)


def _count(place: Place) -> Diagnostic:
    limit, number = place.violation.limit, _size(place.node)
    if number == 0:
        message = f"{place.name} is empty"
    else:
        message = f"{place.name} has {number} entries; {_most_or_least(place.violation.keyword)} {limit} are allowed"
    return Diagnostic(codes.BAD_LIST, message, place.node.span)


def _most_or_least(keyword: str) -> str:
    return "at most" if keyword.startswith("max") else "at least"


def _size(node: Node) -> int:
    match node:
        case Mapping():
            return len(node.entries)
        case NodeSequence():
            return len(node.items)
        case Scalar():
            return 0


def _repeated(place: Place) -> Diagnostic:
    first, again, at = _first_repetition(place.node)
    text = short(again.text) if isinstance(again, Scalar) else "an entry"
    label = Label(first.span, "it is first given here")
    message = f"{named((*place.pointer, at))} repeats {text}"
    return Diagnostic(codes.BAD_LIST, message, again.span, (label,), help="delete one of them")


def _first_repetition(node: Node) -> tuple[Node, Node, int]:
    seen: dict[str, Node] = {}
    items = node.items if isinstance(node, NodeSequence) else ()
    for at, item in enumerate(items):
        value = repr(item.value) if isinstance(item, Scalar) else ""
        if value in seen:
            return seen[value], item, at
        seen[value] = item
    return node, node, 0


def _name(place: Place) -> Diagnostic:
    """Of a key whose mapping has names as keys."""
    return _wrong_name(place, place.key, place.key_span, f"{short(place.key) or 'the empty text'} is not a name")


def _pattern(place: Place) -> Diagnostic:
    text = shown(place.node) if place.text.strip() else json.dumps(place.text)
    return _wrong_name(place, place.text, place.node.span, f"{place.name} {text} is not a name")


def _wrong_name(place: Place, text: str, where: Span, message: str) -> Diagnostic:
    if isinstance(place.violation.limit, int):
        message = f"{short(text)} has {len(text)} characters; at most {place.violation.limit} are allowed"
        return Diagnostic(codes.BAD_NAME, message, where)
    better = _as_name(text, str(place.violation.limit))
    rule = _PATTERNS.get(str(place.violation.limit), "it must match the pattern of the schema")
    return Diagnostic(codes.BAD_NAME, message, where, help=f"{rule}{f', for example `{better}`' if better else ''}")


_PATTERNS = {
    "^[a-z][a-z0-9_]*$": "a name is lower-case letters, digits and _, a letter first",
    "^[a-z][a-z0-9]*([._-][a-z0-9]+)*$": "a name is lower-case words of letters and digits, joined by ., _ or -",
    "^DC[0-9]{3}$": "write a code such as DC251",
}


def _as_name(text: str, pattern: str) -> str:
    if pattern.startswith("^DC"):
        return ""
    letters = (letter if letter.isascii() and letter.isalnum() else "_" for letter in text.lower())
    joined = "".join(letters).strip("_0123456789")
    return "_".join(part for part in joined.split("_") if part)[:40]


def _length(place: Place) -> Diagnostic:
    limit = f"{_most_or_least(place.violation.keyword)} {place.violation.limit} are allowed"
    message = f"{place.name} has {len(place.text)} characters; {limit}"
    return Diagnostic(codes.BAD_NAME, message, place.node.span)


def _family(place: Place) -> Diagnostic:
    family = find(place.root, ("family",))
    stated = family.text if isinstance(family, Scalar) else "another"
    label = (Label(family.span, f"this layout is family {stated}"),) if family is not None else ()
    message = f"the block {place.key} belongs to family {place.key}, not to {stated}"
    help_text = f"delete the block, or write `family: {place.key}`"
    return Diagnostic(codes.BLOCK_OF_ANOTHER_FAMILY, message, place.key_span, label, help=help_text)


def _kind_and_extends(place: Place) -> Diagnostic:
    kind, extends = (key_at(place.root, (*place.violation.pointer, name)) for name in ("kind", "extends"))
    if kind is None or extends is None:
        raise LookupError(f"{named(place.pointer)} was refused for kind and extends and has only one of them")
    message = f"{named(place.pointer)} states both kind and extends"
    label = Label(kind.span, "the kind comes from the attention that is extended")
    return Diagnostic(codes.KIND_AND_EXTENDS, message, extends.span, (label,), help="keep one of them")


_MESSAGES: dict[str, Callable[[Place], Diagnostic]] = {
    "missing": _missing,
    "family": _family,
    "name": _name,
    "not": _kind_and_extends,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    **dict.fromkeys(_BOUNDS, _bound),
    **dict.fromkeys(("minItems", "maxItems", "minProperties", "maxProperties"), _count),
    "uniqueItems": _repeated,
}
