"""The resolved form of layouts written by hand, its bytes, and the agreement of Python types and schema."""

import json
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from draftc.schemas import load
from draftc.spec.check import check_text
from draftc.spec.diagnostic import Severity
from draftc.spec.layout import (
    Consumer,
    Dflash2,
    Domino,
    Dspark,
    DType,
    Gqa,
    Kda,
    Layout,
    Mla,
    MlpSpec,
    Rope,
    RopeStyle,
    RopeType,
    Target,
)
from draftc.spec.resolved import origins, resolved, resolved_json
from draftc.spec.schema_facts import dereferenced, properties
from draftc.spec.sources import list_layouts, open_source

WRITTEN = Path(__file__).parent / "layouts"
ODD = """draftc: 1
name: odd
family: dspark
description: "tab\\t quote\\" delete\\x7f next\\x85 line\\u2028 mark\\ufeff é 漢 \\U0001F600 end"
target: {vocab_size: 1000, hidden_size: 64, num_hidden_layers: 36, eos_token_id: [9], special_token_ids: {}}
target_layer_ids: auto
final_tap: pre_norm
block_size: 8
mask_token_id: 0x07
intermediate_size: 96
max_position_embeddings: 512
rms_norm_eps: 1e-5
x-note: nobody reads this
rope: {rope_theta: 1e4, style: half, scaling: {factor: 4, original_max_position_embeddings: 128, rope_type: yarn}}
attentions:
  spare: {kind: mha, num_attention_heads: 2, head_dim: 8}
  context: {kind: gqa, head_dim: 16, num_attention_heads: 4, num_key_value_heads: 2}
  recurrent: {kind: kda, num_heads: 2, head_dim: 8, short_conv_kernel_size: 4, gate_lower_bound: -5}
layers:
  - {repeat: 2, of: [recurrent, context]}
dspark: {sample_from_anchor: true, markov_rank: 0, markov_head_type: rnn, enable_confidence_head: false}
allow: [DC124, DC233, DC290, DC291]
"""


def layout(text: str) -> Layout:
    return check_text(text, "layout.yaml", None).require()


def test_nothing_is_implied_and_nothing_without_effect_is_kept() -> None:
    form = resolved(layout(ODD))
    assert form["target"] == {
        "hidden_size": 64,
        "num_hidden_layers": 36,
        "vocab_size": 1000,
        "dtype": "bfloat16",
        "hc_mult": 1,
        "eos_token_id": 9,
    }
    assert form["target_layer_ids"] == [1, 12, 22, 33]
    assert form["layers"] == ["recurrent", "context", "recurrent", "context"]
    assert isinstance(form["attentions"], dict)
    assert list(form["attentions"]) == ["recurrent", "context"]
    assert form["dspark"] == {"sample_from_anchor": True, "markov_rank": 0, "enable_confidence_head": False}
    assert form["allow"] == ["DC290"]
    assert not {"rope", "x-note", "final_tap", "target_stream_contraction"} & set(form)
    assert form["attentions"]["context"] == {
        "kind": "gqa",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope": {
            "style": "half",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": True,
            },
        },
        "sliding_window": None,
        "is_causal": False,
        "attention_bias": False,
        "qk_norm": True,
        "output_gate": "none",
    }


def test_keys_stand_in_the_order_of_the_schema() -> None:
    form = resolved(layout(ODD))
    assert list(form) == [key for key in properties() if key in form]
    assert isinstance(form["attentions"], dict)
    for attention in form["attentions"].values():
        assert isinstance(attention, dict)
        assert list(attention) == list(properties(str(attention["kind"])))


def test_text_survives_json_and_yaml() -> None:
    made = layout(ODD)
    text = resolved_json(made)
    assert json.loads(text)["description"] == made.description
    assert layout(text).description == made.description
    assert text.endswith("}\n")


def test_spelling_does_not_reach_the_bytes() -> None:
    other = ODD.replace("1e4", "10000.0").replace("0x07", "7").replace("gate_lower_bound: -5", "gate_lower_bound: -5.0")
    other = other.replace("eos_token_id: [9]", "eos_token_id: 9").replace("layout", "text")
    assert resolved_json(layout(other)) == resolved_json(layout(ODD))


def test_origins_are_plain_data_without_file_names() -> None:
    found = origins(check_text(ODD, "/some/where/layout.yaml", None).require())
    assert found["/block_size"] == {"via": "layout", "line": 8, "column": 13}
    assert found["/draft_vocab_size"]["via"] == "target"
    assert found["/hidden_act"] == {"via": "default"}
    assert "/some/where" not in json.dumps(found)


@pytest.mark.parametrize("name", list_layouts())
def test_shipped_layouts_are_clean_and_fixed_points(name: str) -> None:
    source = open_source(name)
    report = check_text(source.data, source.file, source.folder)
    assert report.diagnostics == ()
    made = report.require()
    assert made.name == name
    assert source.data.startswith(b"# yaml-language-server: $schema=../../schemas/layout-1.schema.json\ndraftc: 1\n")
    text = resolved_json(made)
    assert resolved_json(layout(text)) == text
    assert layout(text) == made


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_layouts_of_public_drafts_check_and_resolve(path: Path) -> None:
    report = check_text(path.read_bytes(), path.name, path.parent)
    numbers = {found.code.number for found in report.diagnostics if found.severity is Severity.ERROR}
    assert numbers == ({"DC110"} if path.name.startswith("future-") else set())
    if report.layout is not None:
        text = resolved_json(report.layout)
        assert layout(text) == report.layout
        assert resolved_json(layout(text)) == text


def keys(*types: type) -> list[str]:
    return [one.name for type_ in types for one in fields(type_)]


@pytest.mark.parametrize(
    ("definition", "type_", "only_schema", "only_type"),
    [
        ("gqa", Gqa, {"kind"}, set()),
        ("mha", Gqa, {"kind"}, {"num_key_value_heads"}),
        ("mla", Mla, {"kind"}, set()),
        ("kda", Kda, {"kind"}, set()),
        ("ropeOwn", Rope, set(), set()),
        ("ropeDefault", Rope, set(), set()),
        ("ropeMla", Rope, set(), {"partial_rotary_factor"}),
        ("targetInline", Target, set(), set()),
        ("dflash2", Dflash2, set(), set()),
        ("domino", Domino, set(), set()),
        ("dspark", Dspark, set(), set()),
        ("consumer", Consumer, {"consumer"}, {"name"}),
        (
            "",
            Layout,
            {"draftc", "rope", "attentions", "dflash2", "domino", "dspark", "intermediate_size", "hidden_act"},
            {"origins"},
        ),
    ],
)
def test_python_types_and_schema_agree(
    definition: str, type_: type, only_schema: set[str], only_type: set[str]
) -> None:
    schema, python = set(properties(definition)), set(keys(type_))
    assert schema - python == only_schema
    assert python - schema == only_type


@pytest.mark.parametrize(
    ("words", "definition", "key"),
    [
        (DType, "", "dtype"),
        (DType, "targetInline", "dtype"),
        (RopeStyle, "ropeOwn", "style"),
        (get_type_hints(MlpSpec)["hidden_act"], "", "hidden_act"),
        (get_type_hints(Gqa)["output_gate"], "gqa", "output_gate"),
        (get_type_hints(Mla)["output_gate"], "mla", "output_gate"),
        (get_type_hints(Kda)["output_gate"], "kda", "output_gate"),
        (get_type_hints(Kda)["context_state"], "kda", "context_state"),
        (get_args(get_type_hints(Dspark)["markov_head_type"])[0], "dspark", "markov_head_type"),
        (get_args(get_type_hints(Layout)["final_tap"])[0], "", "final_tap"),
        (get_args(get_type_hints(Layout)["target_stream_contraction"])[0], "", "target_stream_contraction"),
    ],
)
def test_words_of_types_and_schema_agree(words: object, definition: str, key: str) -> None:
    assert set(get_args(words)) == set(dereferenced(properties(definition)[key])["enum"])


def test_rope_types_of_types_and_schema_agree() -> None:
    assert {f"scaling_{kind}" for kind in get_args(RopeType)} == {
        name for name in load("layout-1")["$defs"] if name.startswith("scaling_")
    }
