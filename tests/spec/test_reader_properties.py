"""Whatever the bytes, the reader answers; what it answers agrees with YAML 1.2 and with the text."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from draftc.spec.nodes import Mapping, Scalar, Sequence, plain, walk
from draftc.spec.reader import Document, read
from draftc.spec.source import Source
from draftc.spec.span import Span

WORDS = st.sampled_from(
    (
        *(
            "a",
            "b",
            ":",
            ": ",
            "- ",
            "\n",
            "\n  ",
            "\n\t",
            "{",
            "}",
            "[",
            "]",
            ",",
            "&x ",
            "*x",
            "!!str ",
            "!t ",
            "'",
            '"',
        ),
        *("|\n", "010", ".inf", "<<", "?", "#", "---", "...", "%", "\u00a0", "é", "𝄞", "\ufeff", "\x85", "\u2028"),
        *("\r", "\r\n", ">", "@"),
    )
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=25).map("".join))
PLAIN = st.one_of(
    st.text(alphabet="0123456789+-.eExoabcdfnulTRUEtrs_:~iNI", max_size=8),
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(
        ["true", "False", "null", "~", "no", "off", "0o17", "0x1F", "1_000", "1:30", "2026-01-01", ".5", "1e3"]
    ),
)
CORE = (
    (r"null|Null|NULL|~", lambda _: None),
    (r"true|True|TRUE", lambda _: True),
    (r"false|False|FALSE", lambda _: False),
    (r"[-+]?[0-9]+", lambda text: int(text)),
    (r"0o[0-7]+", lambda text: int(text[2:], 8)),
    (r"0x[0-9a-fA-F]+", lambda text: int(text[2:], 16)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?(\.inf|\.Inf|\.INF)", lambda text: float(text.replace(".", ""))),
)


def spans(document: Document) -> list[Span]:
    found = [span for one in document.diagnostics for span in (one.span, *(label.span for label in one.secondary))]
    if document.root is not None:
        for _, node in walk(document.root):
            found += [node.span, *node.aliases]
            found += [entry.key.span for entry in node.entries] if isinstance(node, Mapping) else []
    return found


def check(document: Document) -> None:
    assert document.root is not None or document.diagnostics
    source = Source("f", document.text)
    for span in spans(document):
        assert 0 <= span.start.offset <= span.end.offset <= len(document.text)
        for place in (span.start, span.end):
            assert source.position(place.offset) == place
            assert 1 <= place.column <= len(source.line(place.line)) + 2


@given(st.binary(max_size=80))
def test_any_bytes_are_answered(data: bytes) -> None:
    check(read(data, "f"))


@given(TEXTS)
def test_any_text_is_answered_with_places_inside_it(text: str) -> None:
    check(read(text, "f"))


@given(TEXTS)
def test_plain_scalars_stand_where_their_span_says(text: str) -> None:
    document = read(text, "f")
    for _, node in walk(document.root) if document.root is not None else ():
        if (
            isinstance(node, Scalar)
            and not node.quoted
            and not node.faulty
            and node.span.start.line == node.span.end.line
        ):
            assert document.text[node.span.start.offset : node.span.end.offset].rstrip().endswith(node.text)


def core_value(text: str) -> object:
    return next((read_as(text) for pattern, read_as in CORE if re.fullmatch(pattern, text)), text)


@given(PLAIN)
def test_plain_scalars_agree_with_the_core_schema(text: str) -> None:
    document = read(f"k: {text}", "f")
    node = document.root.get("k") if document.root is not None else None
    if isinstance(node, Scalar) and not node.quoted and node.text == text and text:
        expected = core_value(text)
        assert node.value == expected or expected != expected
        assert type(node.value) is type(expected)


TEXT = st.text(alphabet=st.characters(max_codepoint=0xD7FF), max_size=5)  # YAML escapes know no surrogate pairs
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4))
def test_json_reads_as_json(value: dict[str, object]) -> None:
    document = read(json.dumps(value), "f")
    assert not document.diagnostics
    assert document.root is not None
    assert plain(document.root) == value


@given(st.lists(st.sampled_from("ml"), max_size=12), st.booleans(), st.text(alphabet="abc", min_size=1, max_size=3))
def test_duplicates_are_found_at_any_depth(nesting: list[str], flow: bool, key: str) -> None:
    inner = f'{{"{key}": 1, "x": 2, {key}: 3}}' if flow else f"{{x: 0, {key}: [1], {key}: {{}}}}"
    for kind in nesting:
        inner = f"{{y: {inner}}}" if kind == "m" else f"[1, {inner}]"
    document = read(f"root: {inner}", "f")
    (found,) = document.diagnostics
    assert found.code.number == "DC005"
    places = [found.span, found.secondary[0].span]
    assert all(document.text[place.start.offset : place.end.offset].strip('"') == key for place in places)


@given(VALUES)
def test_sequences_and_mappings_keep_their_order(value: object) -> None:
    document = read(json.dumps({"k": value}), "f")
    assert document.root is not None
    for _, node in walk(document.root):
        parts = (
            node.items
            if isinstance(node, Sequence)
            else [one.key for one in node.entries]
            if isinstance(node, Mapping)
            else []
        )
        assert [part.span.start.offset for part in parts] == sorted(part.span.start.offset for part in parts)
