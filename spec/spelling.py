"""What was meant by a value of the wrong type: older YAML spellings, quotes, numbers written for people."""

import json
import re
from collections.abc import Collection

from draftc.spec.nodes import Mapping, Node, Scalar, Sequence

_TRUE = frozenset({"yes", "on", "y", "true"})
_FALSE = frozenset({"no", "off", "n", "false"})
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}([_, ][0-9]{3})+(\.[0-9]+)?|[-+]?[0-9]+(_[0-9]+)+", re.ASCII)
_PLAIN = re.compile(r"[-+]?[0-9]{1,300}", re.ASCII)
_REAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
_SEXAGESIMAL = re.compile(r"[0-9]+(:[0-5]?[0-9])+", re.ASCII)
_LARGEST_WHOLE = 2**53  # up to here every float that is whole is exactly that integer

TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def described(node: Node) -> str:
    """Return what a node is, in words: `the text off`, `the number 5.0`, `a list`."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.value is None:
        return "null"
    if isinstance(node.value, str):
        return f'the text "{short(node.text)}"' if node.quoted else f"the text {short(node.text)}"
    kind = {bool: "the boolean", int: "the integer", float: "the number"}[type(node.value)]
    return f"{kind} {short(node.text)}"


def shown(node: Node) -> str:
    """Return a value as a sentence quotes it: the text of a scalar, `null`, `a list`."""
    if not isinstance(node, Scalar):
        return described(node)
    if node.value is None:
        return "null"
    text = short(node.text)
    return text if text == node.text else json.dumps(node.text)[:60]


def short(text: str) -> str:
    """Return `text` on one line and at most 60 characters long."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def meant(node: Node, types: Collection[str]) -> str:
    """Return the help for a value where one of the schema `types` is asked for, empty when nothing is evident."""
    if not isinstance(node, Scalar):
        return _meant_collection(node, types)
    if node.value is None:
        return "null never means the default: write a value, or leave the key out"
    better = _better(node, types)
    if better is None:
        return ""
    quotes = f" in place of `{short(node.text)}`" if not node.quoted else " without quotes"
    return f"write `{better}`{quotes}"


def _meant_collection(node: Mapping | Sequence, types: Collection[str]) -> str:
    if isinstance(node, Sequence) and len(node.items) == 1 and isinstance(node.items[0], Scalar):
        only = node.items[0]
        return f"write `{short(only.text)}` without brackets" if _fits(only, types) else ""
    return ""


def _fits(node: Scalar, types: Collection[str]) -> bool:
    return any(type(node.value) is python and kind in types for kind, python in _PYTHON)


_PYTHON = (("integer", int), ("number", int), ("number", float), ("boolean", bool), ("string", str))


def _better(node: Scalar, types: Collection[str]) -> str | None:
    if "boolean" in types and (word := _boolean(node)) is not None:
        return word
    if "integer" in types and (number := _whole(node.text)) is not None:
        return str(number)
    if "number" in types and (real := _real(node.text)) is not None:
        return real
    if "array" in types:
        return f"[{short(node.text)}]"
    return f'"{short(node.text)}"' if list(types) == ["string"] else None


def _boolean(node: Scalar) -> str | None:
    word = node.text.casefold()
    if word in _TRUE or node.value == 1:
        return "true"
    return "false" if word in _FALSE or node.value == 0 else None


def _whole(text: str) -> int | None:
    if _PLAIN.fullmatch(text):
        return int(text)
    if _GROUPED.fullmatch(text) and "." not in text and len(text) < 300:
        return int(re.sub("[_, ]", "", text))
    if _SEXAGESIMAL.fullmatch(text) and len(text) < 300:
        return _base_60(text)
    if _REAL.fullmatch(text):
        real = float(text)
        return int(real) if abs(real) <= _LARGEST_WHOLE and real.is_integer() else None
    return None


def _base_60(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def _real(text: str) -> str | None:
    if _REAL.fullmatch(text):
        return text
    if _GROUPED.fullmatch(text):
        return re.sub("[_, ]", "", text)
    return str(_base_60(text)) if _SEXAGESIMAL.fullmatch(text) and len(text) < 300 else None
