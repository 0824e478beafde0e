"""The reader finds everything of the DC0xx table, at its place, and never stops at the first."""

import time

import pytest

from draftc.spec.nodes import Mapping, Scalar, find, plain
from draftc.spec.reader import MOST_BYTES, Document, read
from draftc.spec.scalars import resolve


def codes(document: Document) -> list[str]:
    return [found.code.number for found in document.diagnostics]


def value_of(text: str) -> object:
    document = read(f"k: {text}", "f")
    assert document.root is not None, document.diagnostics
    return plain(document.root)["k"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("NULL", None),
        ("nULL", "nULL"),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("off", "off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("0o17", 15),
        ("0x1f", 31),
        ("0b11", "0b11"),
        ("1e-6", 1e-6),
        ("1e7", 1e7),
        ("1.0e6", 1e6),
        (".5", 0.5),
        ("5.", 5.0),
        ("-7", -7),
        ("+7", 7),
        ("=", "="),
        ("٣", "٣"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("!!float 5", 5.0),
        ("!!null ''", None),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        (b"a: \xff", "DC001", 1, 4),
        (b"a: 1\nb: \xe2\x28\xa1", "DC001", 2, 4),
        ("a: [1", "DC002", 1, 6),
        ("a: 1\nb: c: d", "DC002", 2, 5),
        ("a: 'x", "DC002", 1, 6),
        ("a: @x", "DC002", 1, 4),
        ("a: \x07", "DC002", 1, 4),
        ("a: *nobody", "DC002", 1, 4),
        ("a:\n\tb: 1", "DC003", 2, 1),
        ("a:\n  \tb: 1", "DC003", 2, 3),
        ("a: {\n\tb: 1}", "DC003", 2, 1),
        ("a:\n\u00a0 b: 1", "DC004", 2, 1),
        ("a: \u00a016", "DC004", 1, 4),
        ("a:\u00a016\nb: 1", "DC004", 1, 3),
        ("a: 1\na: 2", "DC005", 2, 1),
        ("a: {<<: {b: 1}}", "DC006", 1, 5),
        ("a: !!set {b}", "DC007", 1, 4),
        ("a: !local b", "DC007", 1, 4),
        ("a: !!int b", "DC007", 1, 4),
        ("a: !!python/object:os.system b", "DC007", 1, 4),
        ("", "DC009", 1, 1),
        ("# only a comment\n", "DC009", 1, 1),
        ("text", "DC009", 1, 1),
        ("- a", "DC009", 1, 1),
        ("a: 1\n---\nb: 1", "DC009", 2, 1),
        ("1: a", "DC010", 1, 1),
        ("true: a", "DC010", 1, 1),
        ("? [a]\n: b", "DC010", 1, 3),
        ("a: 010", "DC011", 1, 4),
        ("a: -007", "DC011", 1, 4),
        ("a: .inf", "DC012", 1, 4),
        ("a: -.INF", "DC012", 1, 4),
        ("a: .nan", "DC012", 1, 4),
        ("a: 1e999", "DC012", 1, 4),
        ("a: " + "9" * 5000, "DC012", 1, 4),
        ("a: 0x" + "f" * 5000, "DC012", 1, 4),
        ("a: &x {b: *x}", "DC013", 1, 11),
        ("a: &x [[*x]]", "DC013", 1, 9),
    ],
)
def test_each_code_stands_at_its_place(text: str | bytes, code: str, line: int, column: int) -> None:
    document = read(text, "f")
    assert codes(document) == [code]
    start = document.diagnostics[0].span.start
    assert (start.line, start.column) == (line, column)


def test_collects_every_error_that_leaves_the_structure_readable() -> None:
    text = "a: 010\nb: .inf\nc: !x 1\nd: {e: 1, e: 2}\n1: x\nf: *g\n<<: {}\n"
    assert codes(read(text, "f")) == ["DC011", "DC012", "DC007", "DC005", "DC010", "DC002", "DC006"]


def test_a_syntax_error_keeps_what_was_found_before_it() -> None:
    document = read("a: 010\nb: [", "f")
    assert codes(document) == ["DC011", "DC002"]
    assert document.root is None


def test_syntax_errors_use_words_that_name_what_was_found() -> None:
    found = read("a: [1, 2\nb: 3", "f").diagnostics[0]
    assert found.message == "expected ',' or ']', but got ':'"
    assert found.secondary[0].span.start.column == 4
    assert found.help


def test_a_duplicate_key_points_at_both_places() -> None:
    document = read("a: 1\nb: {c: 1,\n  c: 2}", "f")
    (found,) = document.diagnostics
    assert str(found.span) == "f:3:3"
    assert [str(label.span) for label in found.secondary] == ["f:2:5"]
    node = find(document.root, ("b", "c")) if document.root else None
    assert isinstance(node, Scalar)
    assert node.faulty


def test_json_is_accepted_tabs_included() -> None:
    document = read('{\n\t"a": [1, true, null],\n\t"b": {"c": "no"}\n}', "f")
    assert not document.diagnostics
    assert document.root is not None
    assert plain(document.root) == {"a": [1, True, None], "b": {"c": "no"}}


def test_tabs_and_no_break_spaces_inside_texts_are_content() -> None:
    document = read('a: "x\n\ty"\nb: |\n  x\n  \ty\nc: caf\u00e9\u00a0noir\nd: 1', "f")
    assert not document.diagnostics
    assert document.root is not None
    assert plain(document.root) == {"a": "x y", "b": "x\n\ty\n", "c": "caf\u00e9\u00a0noir", "d": 1}


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    document = read(b"\xef\xbb\xbfa: 010", "f")
    assert document.text == "a: 010"
    assert str(document.diagnostics[0].span) == "f:1:4"


def test_utf_16_is_named() -> None:
    found = read("a: 1".encode("utf-16"), "f").diagnostics[0]
    assert found.code.number == "DC001"
    assert "UTF-16" in found.help


def test_the_byte_offset_of_bad_utf_8_is_told() -> None:
    found = read("é: ".encode() + b"\xff", "f").diagnostics[0]
    assert "offset 4" in found.message
    assert dict(found.values)["byte_offset"] == 4
    assert found.span.start.offset == 3


def test_bombs_are_counted_without_being_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    start = time.perf_counter()
    document = read("\n".join(lines), "f")
    assert codes(document) == ["DC008"]
    assert document.root is None
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 64 + "]" * 64,
        "a: " + "[" * 100_000,
        "a: &x " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*x" + "]" * 40,
        "a: [" + "x," * 100_001 + "]",
        "a: " + "x" * MOST_BYTES,
    ],
)
def test_limits_on_depth_nodes_and_bytes(text: str) -> None:
    assert codes(read(text, "f")) == ["DC008"]


def test_what_just_fits_is_read() -> None:
    assert not read("a: " + "[" * 62 + "x" + "]" * 62, "f").diagnostics
    assert not read("a: [" + "x," * 99_996 + "]", "f").diagnostics
    assert not read("a: " + "x" * (MOST_BYTES - 3), "f").diagnostics


def test_an_aliased_node_stands_at_its_anchor_and_knows_its_alias() -> None:
    document = read("x-base: &b {c: 1}\na: *b\n", "f")
    node = find(document.root, ("a",)) if document.root else None
    assert isinstance(node, Mapping)
    assert str(node.span) == "f:1:9"
    assert [str(alias) for alias in node.aliases] == ["f:2:4"]


def test_a_block_ends_with_its_last_word() -> None:
    document = read("a:\n  - 1\n  - {b: 2}\n\n\n# comment\nc: 3\n", "f")
    node = find(document.root, ("a",)) if document.root else None
    assert node is not None
    assert (node.span.end.line, node.span.end.column) == (3, 11)


def test_lines_end_as_in_yaml_1_2() -> None:
    document = read("a: 'x\u2028y\x85z'\nb: 010", "f")
    assert document.diagnostics[0].span.start.line == 2


def test_numbers_that_no_float_holds_are_not_finite() -> None:
    fits = resolve("9" * 308)
    assert fits.fault is None
    assert isinstance(fits.value, int)
    faulty = resolve("9" * 310)
    assert faulty.fault is not None
