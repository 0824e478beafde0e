"""Shapes: one error per cause, under the right code, at its place, with the way out."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from draftc.schemas import load
from draftc.spec.codes import SHAPE_CODES
from draftc.spec.finding import Finding, broken_pointers, is_whole
from draftc.spec.nodes import Mapping, find, plain
from draftc.spec.reader import read
from draftc.spec.schema_accepts import accepts
from draftc.spec.schema_check import check_schema, check_subschema
from draftc.spec.schema_errors import violations

BASE = """\
draftc: 1
name: base
family: dflash
target: {hidden_size: 2560, num_hidden_layers: 36, vocab_size: 151936}
target_layer_ids: [1, 9, 17, 25, 33]
block_size: 16
mask_token_id: 151669
rope: {style: half, rope_theta: 1000000}
attentions:
  context: {kind: gqa, num_attention_heads: 32, num_key_value_heads: 8, head_dim: 128}
layers: [context, context]
"""
FACTS = "{hidden_size: 2560, num_hidden_layers: 36, vocab_size: 151936}"
SHIPPED = sorted((Path(__file__).parents[2] / "spec" / "layouts").glob("*.yaml"))
DSPARK = "dspark: {sample_from_anchor: true, markov_rank: 3, enable_confidence_head: true}\n"


def root_of(text: str) -> Mapping:
    root = read(text, "f").root
    assert root is not None
    return root


def findings(old: str = "", new: str = "", add: str = "") -> tuple[Finding, ...]:
    assert old in BASE
    return check_schema(root_of(BASE.replace(old, new, 1) + add if old else BASE + add))


def said(found: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(one.diagnostic.code.number, "/".join(map(str, one.pointer))) for one in found]


def test_the_base_is_clean() -> None:
    assert findings() == ()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_layouts_are_clean_and_reserved_words_are_named(path: Path) -> None:
    document = read(path.read_bytes(), path.name)
    assert document.root is not None
    assert not document.diagnostics
    codes = {one.diagnostic.code.number for one in check_schema(document.root)}
    assert codes == ({"DC110"} if path.stem.startswith("future-") else set())


CASES = [
    ("block_size: 16\n", "", [("DC102", "block_size")]),
    ("block_size: 16", "blocksize: 16", [("DC101", "blocksize")]),
    ("block_size: 16", "block_size: 1", [("DC105", "block_size")]),
    ("block_size: 16", "block_size: 5000", [("DC105", "block_size")]),
    ("block_size: 16", 'block_size: "16"', [("DC103", "block_size")]),
    ("block_size: 16", "block_size: 16.0", [("DC103", "block_size")]),
    ("block_size: 16", "block_size: true", [("DC103", "block_size")]),
    ("block_size: 16", "block_size: null", [("DC103", "block_size")]),
    ("draftc: 1", "draftc: 2", [("DC104", "draftc")]),
    ("draftc: 1", "draftc: '1'", [("DC103", "draftc")]),
    ("family: dflash", "family: dflsh", [("DC104", "family")]),
    ("name: base", "name: Base", [("DC107", "name")]),
    ("name: base", 'name: "base\\n"', [("DC107", "name")]),
    ("name: base", "name: " + "a" * 65, [("DC107", "name")]),
    ("  context: {", "  Context-1: {", [("DC107", "attentions/Context-1")]),
    ("[1, 9, 17, 25, 33]", "[]", [("DC106", "target_layer_ids")]),
    ("[1, 9, 17, 25, 33]", "[1, 1]", [("DC106", "target_layer_ids")]),
    ("[1, 9, 17, 25, 33]", "autos", [("DC104", "target_layer_ids")]),
    ("[1, 9, 17, 25, 33]", "[1, -1]", [("DC105", "target_layer_ids/1")]),
    ("kind: gqa", "kind: gqa, extends: context", [("DC111", "attentions/context")]),
    ("kind: gqa, ", "", [("DC102", "attentions/context/kind")]),
    ("kind: gqa", "kind: gqq", [("DC104", "attentions/context/kind")]),
    ("head_dim: 128", "head_dims: 128", [("DC101", "attentions/context/head_dims")]),
    ("[context, context]", "[{attention: context, mlp: 1}]", [("DC110", "layers/0/mlp")]),
    ("[context, context]", "[{repeat: 1, of: [context]}]", [("DC105", "layers/0/repeat")]),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_codes_and_places(old: str, new: str, expected: list[tuple[str, str]]) -> None:
    assert said(findings(old, new)) == expected


# A misspelt key that selects a branch: everything else of that mapping would be an echo.
SELECTORS = [
    ("kind: gqa", "knd: gqa", "attentions/context/knd"),
    ("kind: gqa, num_attention_heads: 32", "extnds: context, num_attention_heads: x", "attentions/context/extnds"),
    (FACTS, "{confg: config.json}", "target/confg"),
    ("[context, context]", "[{atention: context}]", "layers/0/atention"),
    ("[context, context]", "[{repeats: 2, of: [3]}]", "layers/0/repeats"),
    ("rope_theta: 1000000", "rope_theta: 1000000, scaling: {rope_typ: yarn, factor: x}", "rope/scaling/rope_typ"),
]


@pytest.mark.parametrize(("old", "new", "place"), SELECTORS)
def test_a_misspelt_selector_silences_its_mapping(old: str, new: str, place: str) -> None:
    found = findings(old, new)
    assert said(found) == [("DC101", place)]
    assert "did you mean" in found[0].diagnostic.help


def test_the_type_of_a_scaling_is_a_foreign_selector() -> None:
    found = findings("rope_theta: 1000000", "rope_theta: 1000000, scaling: {type: yarn, factor: 4}")
    assert said(found) == [("DC109", "rope/scaling/type")]


def test_a_block_of_another_family_is_reported_once_without_its_content() -> None:
    found = findings(add="dspark: {nonsense: 1, markov_rank: x}\n")
    assert said(found) == [("DC108", "dspark")]
    assert [str(label.span) for label in found[0].diagnostic.secondary] == ["f:3:9"]


def test_keys_that_depend_on_values() -> None:
    assert sorted(said(findings("family: dflash", "family: dspark", DSPARK))) == [
        ("DC102", "dspark/confidence_head_with_markov"),
        ("DC102", "dspark/markov_head_type"),
    ]


def test_reserved_words_stand_alone() -> None:
    assert said(findings(add="residual: {kind: gated, nonsense: 1}\n")) == [("DC110", "residual")]
    indexer = findings("head_dim: 128", "head_dim: 128, indexer: {kind: dsa}")
    assert said(indexer) == [("DC110", "attentions/context/indexer")]


@pytest.mark.parametrize(
    ("add", "words"),
    [
        ("num_hidden_layers: 5\n", "layers"),
        ("head_dim: 128\n", "attentions"),
        ("torch_dtype: bfloat16\n", "dtype"),
        ("vocab_size: 5\n", "target"),
        ("rope_theta: 10000\n", "rope"),
        ("markov_rank: 256\n", "dspark"),
        ("aux_hidden_state_layer_ids: [2]\n", "lower by one"),
        ("dflash_config: {}\n", "draftc init"),
        ("learning_rate: 1e-4\n", "draftc train"),
    ],
)
def test_words_of_other_formats_are_answered(add: str, words: str) -> None:
    (found,) = findings(add=add)
    assert found.diagnostic.code.number == "DC109"
    assert words in found.diagnostic.help


@pytest.mark.parametrize(
    ("written", "help_text"),
    [
        ("block_size: 1_000", "1000"),
        ("block_size: 1:30", "90"),
        ("block_size: 16.0", "16"),
        ('block_size: "16"', "16"),
        ("block_size: 1e2", "100"),
        ("block_size: [16]", "16"),
    ],
)
def test_the_integer_that_was_meant(written: str, help_text: str) -> None:
    (found,) = findings("block_size: 16", written)
    assert f"`{help_text}`" in found.diagnostic.help


@pytest.mark.parametrize(
    ("written", "meant"), [("off", "false"), ("No", "false"), ("on", "true"), ('"true"', "true"), ("0", "false")]
)
def test_the_boolean_that_was_meant(written: str, meant: str) -> None:
    (found,) = findings("head_dim: 128", f"head_dim: 128, qk_norm: {written}")
    assert found.diagnostic.code.number == "DC103"
    assert f"`{meant}`" in found.diagnostic.help


@pytest.mark.parametrize(("written", "meant"), [("bf16", "bfloat16"), ("fp32", "float32"), ("bfloat61", "bfloat16")])
def test_values_of_other_formats_and_misspelt_ones(written: str, meant: str) -> None:
    (found,) = findings(add=f"dtype: {written}\n")
    assert found.diagnostic.help == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("old", "new", "example"),
    [
        ("[context, context]", "{repeat: 5, of: [context]}", "[recurrent, context, recurrent, local, context]"),
        ("[1, 9, 17, 25, 33]", '"1,9,17"', "[1, 9, 17, 25, 33]"),
    ],
)
def test_a_list_that_was_meant_is_shown(old: str, new: str, example: str) -> None:
    (found,) = findings(old, new)
    assert found.diagnostic.help == f"write for example `{example}`"


def test_no_example_invites_to_copy_a_mask_token() -> None:
    (found,) = findings("mask_token_id: 151669", 'mask_token_id: "<|mask|>"')
    assert found.diagnostic.code.number == "DC103"
    assert found.diagnostic.help == ""


def test_what_the_reader_reported_is_not_reported_again() -> None:
    assert findings("block_size: 16", "block_size: .inf") == ()
    assert findings("block_size: 16", "block_size: !x 16") == ()
    assert findings("head_dim: 128}", "<<: {head_dim: 128}}") == ()
    assert said(findings("block_size: 16", "blocksize: .inf")) == [("DC101", "blocksize")]


def test_an_aliased_node_is_reported_once_at_its_anchor() -> None:
    text = BASE.replace(
        "  context: {kind", "  other: &a {kind: gqa, num_attention_heads: x}\n  again: *a\n  context: {kind"
    )
    found = check_schema(root_of(text))
    assert said(found) == [
        ("DC102", "attentions/other/num_key_value_heads"),
        ("DC102", "attentions/other/head_dim"),
        ("DC103", "attentions/other/num_attention_heads"),
    ]
    assert all(one.also[0][:2] == ("attentions", "again") for one in found)
    assert all("f:11:10" in one.diagnostic.notes[0] for one in found)


def test_broken_places_are_known_to_later_steps() -> None:
    root = root_of(BASE.replace("block_size: 16", "blocksize: 16").replace("head_dim: 128", "head_dim: x"))
    broken = broken_pointers(root, check_schema(root))
    assert not is_whole(broken, "block_size")
    assert not is_whole(broken, "attentions", "context")
    assert is_whole(broken, "target")
    assert is_whole(broken, "layers")


def test_a_part_is_checked_at_its_own_place() -> None:
    root = root_of("attentions: {near: {head_dim: x, num_key_value_heads: 0}}")
    node = find(root, ("attentions", "near", "head_dim"))
    assert node is not None
    schema = load("layout-1")["$defs"]["gqa"]["properties"]["head_dim"]
    (found,) = check_subschema(node, schema, ("attentions", "near", "head_dim"))
    assert said((found,)) == [("DC103", "attentions/near/head_dim")]
    assert found.diagnostic.span == node.span


def test_every_code_of_shape_occurs_above() -> None:
    seen = {code for _, _, expected in CASES for code, _ in expected} | {"DC108", "DC109"}
    assert {code.number for code in SHAPE_CODES} == seen


# jsonschema itself, on the schema as it is shipped, with integers as the language has them.
ORACLE = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)(load("layout-1"))
VALID = [plain(root_of(path.read_text("utf-8"))) for path in SHIPPED if not path.stem.startswith("future-")]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5000),
    st.floats(-2, 5000),
    st.sampled_from(["", "none", "auto", "x", "kda"]),
    st.just([]),
    st.just({}),
    st.just([1, 1]),
    st.just({"kind": "mha"}),
)


def places(value: object, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*here, key), *places(item, (*here, key)))]


@st.composite
def mutations(draw: st.DrawFn) -> object:
    value = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 3))):
        *above, last = draw(st.sampled_from(places(value)))
        holder = value
        for step in above:
            holder = holder[step]
        action = draw(st.sampled_from(["set", "drop", "rename"]))
        if action == "set":
            holder[last] = copy.deepcopy(draw(JUNK))
        elif action == "drop":
            del holder[last]
        elif isinstance(holder, dict):
            holder[f"{last}{draw(st.sampled_from(['s', '_', 'x']))}"] = holder.pop(last)
        if not places(value):
            break
    return value


@given(mutations())
def test_the_quick_answer_is_that_of_jsonschema(value: object) -> None:
    assert (violations(value, load("layout-1")) == {}) == ORACLE.is_valid(value)


@given(mutations())
def test_every_invalid_layout_gets_a_finding_and_every_finding_a_place(value: object) -> None:
    text = json.dumps(value)
    document = read(text, "f")
    if document.root is None:
        return
    found = check_schema(document.root)
    assert bool(found) != ORACLE.is_valid(value)
    for one in found:
        assert one.diagnostic.message
        assert 0 <= one.diagnostic.span.start.offset <= one.diagnostic.span.end.offset <= len(text)
    assert len({(one.diagnostic.code, one.pointer) for one in found}) == len(found)


EDGES = [
    ({"minimum": 2}, (1, 2, 3, 2.0, True, "1")),
    ({"maximum": 2}, (1, 2, 3, 2.0, True, "3")),
    ({"exclusiveMinimum": 2}, (1, 2, 3, 2.5)),
    ({"exclusiveMaximum": 2}, (1, 2, 3, 1.5)),
    ({"multipleOf": 2}, (0, 1, 2, 3, -2)),
    ({"minLength": 2}, ("a", "ab", "abc", 1, [])),
    ({"maxLength": 2}, ("a", "ab", "abc", 1, [1, 2, 3])),
    ({"minItems": 2}, ([1], [1, 2], [1, 2, 3], "a", {})),
    ({"maxItems": 2}, ([1], [1, 2], [1, 2, 3], "abc")),
    ({"minProperties": 1}, ({}, {"a": 1}, {"a": 1, "b": 2}, [])),
    ({"maxProperties": 1}, ({}, {"a": 1}, {"a": 1, "b": 2}, [1, 2])),
    ({"uniqueItems": True}, ([1, 1], [1, 1.0], [1, True], ["a", "a"], [None, None], [[1], [1]], "aa")),
    ({"enum": [1, "a", None]}, (1, 1.0, True, "a", None, "None")),
    ({"const": 1}, (1, 1.0, True, "1")),
    ({"const": True}, (True, 1, False)),
    ({"not": {"required": ["a"]}}, ({"a": 1}, {}, [])),
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ({"a": 1}, {"b": 1}, {})),
    (
        {"patternProperties": {"^x-": {"type": "null"}}, "additionalProperties": False},
        ({"x-a": None}, {"x-a": 1}, {"a": 1}),
    ),
    ({"propertyNames": {"maxLength": 1}}, ({"a": 1}, {"ab": 1})),
    ({"if": {"type": "string"}, "then": {"enum": ["a"]}, "else": {"minimum": 1}}, ("a", "b", 0, 1, None)),
    ({"items": {"type": "integer"}}, ([], [1], [1.0], [True], ["1"], 1)),
    ({"type": ["number", "null"]}, (1, 1.5, None, True, "1")),
]


@pytest.mark.parametrize(("schema", "values"), EDGES)
def test_the_quick_answer_agrees_at_every_edge(schema: dict[str, object], values: tuple[object, ...]) -> None:
    oracle = ORACLE.evolve(schema=schema)
    assert [accepts(schema, value) for value in values] == [oracle.is_valid(value) for value in values]
    assert len({oracle.is_valid(value) for value in values}) == 2


def test_a_keyword_that_is_not_known_is_never_passed_over() -> None:
    with pytest.raises(KeyError):
        accepts({"contains": {}}, [])
