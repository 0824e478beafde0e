"""What the layout schema states beside shapes: the order of keys, their defaults, and which values are numbers."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from functools import cache
from typing import Any

from draftc.schemas import load
from draftc.spec.nodes import Value

Schema = MappingOf[str, Any]


@cache
def properties(name: str = "") -> Schema:
    """Return the subschemas of the keys of a mapping, in their order.

    `name` is a definition (`gqa`) or a top-level key (`dspark`); without a name, the layout itself is meant.
    """
    layout = load("layout-1")
    schema = (layout["$defs"].get(name) or layout["properties"][name]) if name else layout
    return _object_of(dereferenced(schema))


def dereferenced(schema: Schema) -> Schema:
    """Return `schema` with the definition that its `$ref` names beneath its own keywords."""
    if "$ref" not in schema:
        return schema
    return {**dereferenced(load("layout-1")["$defs"][schema["$ref"].rpartition("/")[2]]), **schema}


def _object_of(schema: Schema) -> Schema:
    """The properties of a mapping, also where text is the other choice (a rope may be `none`)."""
    branches = [branch["then"] for branch in schema.get("allOf", ()) if branch["if"] == {"type": "object"}]
    found: Schema = branches[0]["properties"] if branches else schema["properties"]
    return found


def filled(name: str, stated: MappingOf[str, Value]) -> dict[str, Value]:
    """Return the stated values and the defaults of the definition `name`, in its order, numbers as floats.

    A key that is neither stated nor has a default is left out.
    """
    return dict(_filled(properties(name), stated))


def _filled(schemas: Schema, stated: MappingOf[str, Value]) -> Iterator[tuple[str, Value]]:
    for key, raw in schemas.items():
        schema = dereferenced(raw) if raw is not True else {}
        if key in stated:
            yield key, typed(schema, stated[key])
        elif "default" in schema:
            yield key, typed(schema, schema["default"])


def typed(schema: Schema, value: Value) -> Value:
    """Return `value` as `schema` means it: an integer becomes a float where the schema says number."""
    if isinstance(value, list) and "items" in schema:
        return [typed(dereferenced(schema["items"]), item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and _is_number(schema):
        return float(value)
    return value


def _is_number(schema: Schema) -> bool:
    types = schema.get("type", ())
    return "number" in ([types] if isinstance(types, str) else types)
