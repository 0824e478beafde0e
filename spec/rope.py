"""Ropes as the layout means them: defaults filled in, numbers as floats."""

from collections.abc import Iterator
from typing import Any

from draftc.spec.layout import Rope, RopeScaling
from draftc.spec.nodes import Node, Value, find
from draftc.spec.schema_facts import filled
from draftc.spec.span import Origin


def rope_of(value: Value) -> Rope | None:
    """Return the rope that `value`, valid by the schema, describes; None for `none`."""
    if not isinstance(value, dict):
        return None
    facts: dict[str, Any] = filled("ropeOwn", value)
    scaling = facts.pop("scaling", None)
    return Rope(**facts, scaling=_scaling(scaling) if scaling is not None else None)


def _scaling(stated: dict[str, Any]) -> RopeScaling:
    facts = filled(f"scaling_{stated['rope_type']}", stated)
    parameters: list[tuple[str, Any]] = [(key, _frozen(value)) for key, value in facts.items() if key != "rope_type"]
    return RopeScaling(stated["rope_type"], tuple(parameters))


def _frozen(value: Value) -> Any:
    return tuple(value) if isinstance(value, list) else value


def rope_origins(pointer: str, node: Node, rope: Rope | None, via: str) -> Iterator[tuple[str, Origin]]:
    """Yield pointer and origin of each value in a rope, the defaults included."""
    if rope is None:
        return
    for key in ("style", "rope_theta", "partial_rotary_factor", "scaling"):
        yield f"{pointer}/{key}", _origin(find(node, (key,)), via)
    scaling = find(node, ("scaling",))
    if rope.scaling is None or scaling is None:
        return
    for key in ("rope_type", *(name for name, _ in rope.scaling.parameters)):
        yield f"{pointer}/scaling/{key}", _origin(find(scaling, (key,)), via)


def _origin(node: Node | None, via: str) -> Origin:
    return Origin(via, node.span) if node is not None else Origin("default")
