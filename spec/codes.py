"""Codes of reading (DC0xx) and of shape (DC101 to DC111). The codes of rules stand with their rules."""

from draftc.spec.diagnostic import Code, Severity


def _error(number: str, name: str) -> Code:
    return Code(number, name, Severity.ERROR)


NOT_UTF_8 = _error("DC001", "not-utf-8")
YAML_SYNTAX = _error("DC002", "yaml-syntax")
TAB_IN_INDENTATION = _error("DC003", "tab-in-indentation")
NO_BREAK_SPACE = _error("DC004", "no-break-space")
DUPLICATE_KEY = _error("DC005", "duplicate-key")
MERGE_KEY = _error("DC006", "merge-key")
TAG_NOT_ALLOWED = _error("DC007", "tag-not-allowed")
TOO_LARGE = _error("DC008", "too-large")
NOT_ONE_MAPPING = _error("DC009", "not-one-mapping")
KEY_NOT_TEXT = _error("DC010", "key-not-text")
LEADING_ZERO = _error("DC011", "leading-zero")
NOT_FINITE = _error("DC012", "not-finite")
RECURSIVE_ALIAS = _error("DC013", "recursive-alias")

UNKNOWN_KEY = _error("DC101", "unknown-key")
MISSING_KEY = _error("DC102", "missing-key")
WRONG_TYPE = _error("DC103", "wrong-type")
UNKNOWN_VALUE = _error("DC104", "unknown-value")
OUT_OF_BOUNDS = _error("DC105", "out-of-bounds")
BAD_LIST = _error("DC106", "bad-list")
BAD_NAME = _error("DC107", "bad-name")
BLOCK_OF_ANOTHER_FAMILY = _error("DC108", "block-of-another-family")
FOREIGN_KEY = _error("DC109", "foreign-key")
RESERVED_KEY = _error("DC110", "reserved-key")
KIND_AND_EXTENDS = _error("DC111", "kind-and-extends")

READING_CODES = (
    NOT_UTF_8,
    YAML_SYNTAX,
    TAB_IN_INDENTATION,
    NO_BREAK_SPACE,
    DUPLICATE_KEY,
    MERGE_KEY,
    TAG_NOT_ALLOWED,
    TOO_LARGE,
    NOT_ONE_MAPPING,
    KEY_NOT_TEXT,
    LEADING_ZERO,
    NOT_FINITE,
    RECURSIVE_ALIAS,
)
SHAPE_CODES = (
    UNKNOWN_KEY,
    MISSING_KEY,
    WRONG_TYPE,
    UNKNOWN_VALUE,
    OUT_OF_BOUNDS,
    BAD_LIST,
    BAD_NAME,
    BLOCK_OF_ANOTHER_FAMILY,
    FOREIGN_KEY,
    RESERVED_KEY,
    KIND_AND_EXTENDS,
)
