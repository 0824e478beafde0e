"""Scalars of the YAML 1.2 core schema: https://yaml.org/spec/1.2.2/#103-core-schema."""

import re
from dataclasses import dataclass
from math import inf, nan

from draftc.spec.codes import LEADING_ZERO, NOT_FINITE
from draftc.spec.diagnostic import Code

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

_DECIMAL = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OCTAL = re.compile(r"0o[0-7]+", re.ASCII)
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NOT_A_NUMBER = re.compile(r"\.(nan|NaN|NAN)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+", re.ASCII)
_LONGEST = 309  # digits of the largest float


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of a scalar, and the code of what is wrong with the way it is written, if anything."""

    value: bool | int | float | str | None
    fault: Code | None = None


def resolve(text: str) -> Resolved:
    """Return what the plain scalar `text` means.

    A leading zero is read as decimal and reported; a number that no float holds is reported as not finite.
    """
    if text in NULLS:
        return Resolved(None)
    if text in TRUTHS:
        return Resolved(TRUTHS[text])
    number = _number(text)
    if number is None:
        return Resolved(text)
    if number in (inf, -inf) or number != number:
        return Resolved(number, NOT_FINITE)
    return Resolved(number, LEADING_ZERO if _LEADING_ZERO.fullmatch(text) else None)


def resolve_as(tag: str, text: str) -> Resolved | None:
    """Return what `text` means under `tag` (`str`, `null`, `bool`, `int`, `float`), None when it does not fit."""
    if tag == "str":
        return Resolved(text)
    found = resolve(text)
    if tag == "float" and type(found.value) is int:
        return Resolved(float(found.value), found.fault)
    wanted = {"null": type(None), "bool": bool, "int": int, "float": float}[tag]
    return found if type(found.value) is wanted else None


def _number(text: str) -> int | float | None:
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if _OCTAL.fullmatch(text):
        return _fitting(int(text[2:], 8))
    if _HEXADECIMAL.fullmatch(text):
        return _fitting(int(text[2:], 16))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return -inf if text.startswith("-") else inf
    return nan if _NOT_A_NUMBER.fullmatch(text) else None


def _decimal(text: str) -> int | float:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lstrip("0") or "0"
    return sign * _fitting(int(digits)) if len(digits) <= _LONGEST else sign * inf


def _fitting(number: int) -> int | float:
    try:
        float(number)
    except OverflowError:
        return inf
    return number
