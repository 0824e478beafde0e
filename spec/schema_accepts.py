"""Whether a value is valid, for the keywords that the layout schema uses.

Importing jsonschema takes as long as the rest of `check`, and most layouts are valid: it is asked only for the errors
of those that are not. A test compares the two on layouts and on mutations of them.
"""

import re
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from functools import cache
from typing import Any

Schema = MappingOf[str, Any]
Keyword = Callable[[Any, Any, Schema], bool]
_ANNOTATIONS = frozenset({"$schema", "$id", "title", "description", "examples", "default", "then", "else"})
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def accepts(schema: Schema | bool, value: Any) -> bool:
    """Whether `value` is valid under `schema`, which holds no `$ref`.

    Raises KeyError for a keyword that is not known here.
    """
    if isinstance(schema, bool):
        return schema
    return all(_holds(keyword, limit, value, schema) for keyword, limit in schema.items())


def matches(pattern: str, text: str) -> bool:
    """Whether `pattern` is found in `text`, with the `$` of ECMA 262, which a final line break does not satisfy."""
    return _compiled(pattern).search(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"{pattern[:-1]}\\Z" if pattern.endswith("$") else pattern)


def is_type(name: str, value: Any) -> bool:
    """Whether `value` is of the JSON Schema type `name`; 5.0 and true are no integers."""
    return type(value) in _TYPES[name]


def _holds(keyword: str, limit: Any, value: Any, schema: Schema) -> bool:
    if keyword in _ANNOTATIONS:
        return True
    kinds, rule = _RULES[keyword]
    return (kinds is not None and type(value) not in kinds) or rule(limit, value, schema)


def _branches(condition: Any, value: Any, schema: Schema) -> bool:
    return accepts(schema.get("then" if accepts(condition, value) else "else", True), value)


def _properties(limit: Any, value: Any, _: Schema) -> bool:
    return all(accepts(schema, value[name]) for name, schema in limit.items() if name in value)


def _pattern_properties(limit: Any, value: Any, _: Schema) -> bool:
    return all(
        accepts(schema, value[name]) for pattern, schema in limit.items() for name in value if matches(pattern, name)
    )


def _additional(limit: Any, value: Any, schema: Schema) -> bool:
    return all(accepts(limit, item) for name, item in value.items() if not is_known(name, schema))


def is_known(name: str, schema: Schema) -> bool:
    """Whether `properties` or `patternProperties` of `schema` name the key `name`."""
    patterns = schema.get("patternProperties", {})
    return name in schema.get("properties", {}) or any(matches(pattern, name) for pattern in patterns)


def _one_of_types(limit: Any, value: Any, _: Schema) -> bool:
    return any(is_type(name, value) for name in ([limit] if isinstance(limit, str) else limit))


def _equal(limit: Any, value: Any) -> bool:
    return (type(limit) is bool) == (type(value) is bool) and bool(limit == value)


def _distinct(limit: Any, value: Any, _: Schema) -> bool:
    return not limit or len({_identity(item) for item in value}) == len(value)


def _identity(item: Any) -> object:
    return item if type(item) in (int, float) else (type(item), repr(item))


_ANY: dict[str, Keyword] = {
    "type": _one_of_types,
    "enum": lambda limit, value, _: any(_equal(one, value) for one in limit),
    "const": lambda limit, value, _: _equal(limit, value),
    "allOf": lambda limit, value, _: all(accepts(one, value) for one in limit),
    "anyOf": lambda limit, value, _: any(accepts(one, value) for one in limit),
    "not": lambda limit, value, _: not accepts(limit, value),
    "if": _branches,
}
_MAPPING: dict[str, Keyword] = {
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": lambda limit, value, _: all(accepts(limit, name) for name in value),
    "required": lambda limit, value, _: all(name in value for name in limit),
    "minProperties": lambda limit, value, _: len(value) >= limit,
    "maxProperties": lambda limit, value, _: len(value) <= limit,
}
_LIST: dict[str, Keyword] = {
    "items": lambda limit, value, _: all(accepts(limit, item) for item in value),
    "minItems": lambda limit, value, _: len(value) >= limit,
    "maxItems": lambda limit, value, _: len(value) <= limit,
    "uniqueItems": _distinct,
}
_TEXT: dict[str, Keyword] = {
    "pattern": lambda limit, value, _: matches(limit, value),
    "minLength": lambda limit, value, _: len(value) >= limit,
    "maxLength": lambda limit, value, _: len(value) <= limit,
}
_NUMBER: dict[str, Keyword] = {
    "minimum": lambda limit, value, _: value >= limit,
    "maximum": lambda limit, value, _: value <= limit,
    "exclusiveMinimum": lambda limit, value, _: value > limit,
    "exclusiveMaximum": lambda limit, value, _: value < limit,
    "multipleOf": lambda limit, value, _: value % limit == 0,
}
_RULES: dict[str, tuple[tuple[type, ...] | None, Keyword]] = {
    **{keyword: (None, rule) for keyword, rule in _ANY.items()},
    **{keyword: ((dict,), rule) for keyword, rule in _MAPPING.items()},
    **{keyword: ((list,), rule) for keyword, rule in _LIST.items()},
    **{keyword: ((str,), rule) for keyword, rule in _TEXT.items()},
    **{keyword: ((int, float), rule) for keyword, rule in _NUMBER.items()},
}
