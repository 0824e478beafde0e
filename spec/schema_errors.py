"""What the layout schema refuses, one violation per place. jsonschema does the validating (draft 2020-12)."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from draftc.schemas import load
from draftc.spec.nodes import Pointer, Value
from draftc.spec.schema_accepts import accepts, is_known, is_type, matches

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

Schema = MappingOf[str, Any]
_ORDER = {"type": 0, "enum": 1, "const": 2, "pattern": 3}


@dataclass(frozen=True, slots=True)
class Violation:
    """One place that the schema refuses.

    `keyword` is the schema's, or `missing` and `unknown` for a key that is asked for or not known, `family` for a
    block of another family, `name` for a key of a mapping whose keys are names; for these four the last step of
    `pointer` is the key. `limit` is the keyword's value, and `schema` holds it.
    """

    pointer: Pointer
    keyword: str
    limit: Any
    schema: Schema

    @property
    def parent(self) -> Pointer:
        """The mapping or list that holds the place."""
        return self.pointer[:-1]


def violations(value: Value, schema: Schema | bool) -> dict[Pointer, Violation]:
    """Return what `schema` refuses in `value`, one violation a place: type before enum, const, pattern, bounds.

    `$ref` in `schema` points into the layout schema.
    """
    found: dict[Pointer, Violation] = {}
    whole = _written_out(schema)
    for error in () if accepts(whole, value) else _validator(whole).iter_errors(value):
        for violation in _violations(error):
            known = found.get(violation.pointer)
            if known is None or _rank(violation) < _rank(known):
                found[violation.pointer] = violation
    return found


def _written_out(schema: Schema | bool) -> Any:
    return _layout() if schema is load("layout-1") else _without_references(schema)


@cache
def _layout() -> Any:
    return _without_references(load("layout-1"))


def _rank(violation: Violation) -> int:
    return _ORDER.get(violation.keyword, len(_ORDER))


def _violations(error: "ValidationError") -> Iterator[Violation]:
    pointer: Pointer = tuple(error.absolute_path)
    keyword, limit, instance = str(error.validator), cast("Any", error.validator_value), cast("Any", error.instance)
    schema: Schema = error.schema if isinstance(error.schema, dict) else {}
    if keyword == "not" and limit == {}:
        yield Violation(pointer, "family", None, schema)
    elif keyword == "required":
        missing = (name for name in limit if name not in instance)
        yield from (Violation((*pointer, name), "missing", limit, schema) for name in missing)
    elif keyword == "additionalProperties":
        extra = (name for name in instance if not is_known(name, schema))
        yield from (Violation((*pointer, name), "unknown", limit, schema) for name in extra)
    elif "propertyNames" in error.absolute_schema_path:
        yield Violation((*pointer, instance), "name", limit, schema)
    else:
        yield Violation(pointer, keyword, limit, schema)


def _validator(schema: Any) -> "Validator":
    validator: Validator = _validator_class()(schema)
    return validator


@cache
def _validator_class() -> Any:
    # Imported here: it takes as long as everything else that `check` does.
    from jsonschema import Draft202012Validator, validators

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {name: partial(_is_type, name) for name in ("integer", "number")}
    )
    extend: Any = validators.extend
    return extend(Draft202012Validator, {"pattern": _pattern}, type_checker=types)


def _is_type(name: str, _checker: Any, value: Any) -> bool:
    return is_type(name, value)


def _pattern(_validator: "Validator", pattern: str, value: Any, _schema: Schema) -> "Iterator[ValidationError]":
    from jsonschema.exceptions import ValidationError

    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _without_references(schema: Any) -> Any:
    """Write every `$ref` out; beside one the schema has annotations only, so they may simply be laid over it."""
    if isinstance(schema, list):
        return [_without_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _without_references(value) for key, value in schema.items() if key not in ("$ref", "$defs")}
    if "properties" in own:
        # jsonschema forgets the place of what a `false` refuses; it knows it for the same thing said by `not`.
        own["properties"] = {key: {"not": {}} if value is False else value for key, value in own["properties"].items()}
    return {**_definition(schema["$ref"]), **own} if "$ref" in schema else own


@cache
def _definition(reference: str) -> dict[str, Any]:
    written: dict[str, Any] = _without_references(load("layout-1")["$defs"][reference.rpartition("/")[2]])
    return written
