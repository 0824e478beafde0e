"""The target in its three forms: presets, config.json files in every nesting and spelling, and facts written out."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftc.schemas import load
from draftc.spec.check import CheckReport, check_text
from draftc.spec.layout import Target
from draftc.spec.reader import read
from draftc.spec.schema_check import check_subschema
from draftc.spec.schema_facts import properties
from draftc.spec.target import list_targets, preset, preset_target

FACTS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 36,
    "vocab_size": 1000,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
}
TEMPLATE = """draftc: 1
name: base
family: dflash
target: TARGET
target_layer_ids: [1, 9]
block_size: 8
mask_token_id: 7
intermediate_size: 128
max_position_embeddings: 4096
rms_norm_eps: 1e-6
rope: {style: half, rope_theta: 10000}
attentions: {context: {kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}}
layers: [context]
"""


def check(target: str, folder: Path | None = None, template: str = TEMPLATE) -> CheckReport:
    return check_text(template.replace("TARGET", target), "base.yaml", folder)


def from_config(folder: Path, config: object, name: str = "config.json") -> CheckReport:
    (folder / name).write_text(json.dumps(config), "utf-8")
    return check(f"{{config: {name}}}", folder)


def target_of(report: CheckReport) -> Target:
    return report.require().target


def said(report: CheckReport) -> list[str]:
    return [f"{found.code.number} {found.message}" for found in report.diagnostics]


def test_inline_facts_become_the_record() -> None:
    target = target_of(
        check(
            "{hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000, eos_token_id: [5, 6], rope_theta: 10000, "
            "special_token_ids: {image_token_id: 9}, dtype: float16, hc_mult: 1, name_or_path: a/b}"
        )
    )
    assert target == Target(
        64,
        36,
        1000,
        dtype="float16",
        eos_token_id=(5, 6),
        special_token_ids=(("image_token_id", 9),),
        name_or_path="a/b",
        rope_theta=10000.0,
    )


def test_one_end_of_text_or_several() -> None:
    one = target_of(check("{hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000, eos_token_id: 5}"))
    listed = target_of(check("{hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000, eos_token_id: [5]}"))
    assert one == listed
    assert one.eos_token_id == (5,)


def test_a_plain_config(tmp_path: Path) -> None:
    extra = {"eos_token_id": [1, 2], "bos_token_id": None, "pad_token_id": -1, "image_token_index": 9, "head_dim": 8}
    report = from_config(tmp_path, FACTS | extra | {"torch_dtype": "torch.float16", "model_type": "llama"})
    target = target_of(report)
    assert said(report) == []
    assert (target.hidden_size, target.dtype, target.model_type, target.head_dim) == (64, "float16", "llama", 8)
    assert (target.bos_token_id, target.pad_token_id, target.eos_token_id) == (None, None, (1, 2))
    assert target.special_token_ids == (("image_token_index", 9),)
    assert target.name_or_path is None
    origins = report.require().origins
    assert origins["/target/dtype"].via == "config.json: torch_dtype"
    assert origins["/hidden_size"].via == "config.json: hidden_size"


def test_a_folder_stands_for_the_config_in_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(FACTS), "utf-8")
    report = check("{config: model}", tmp_path)
    assert report.require().origins["/target/vocab_size"].via == "model/config.json: vocab_size"


def test_absolute_paths_do_not_reach_origins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FACTS), "utf-8")
    report = check(f"{{config: {tmp_path / 'config.json'}}}", tmp_path)
    assert report.require().origins["/target/vocab_size"].via == "config.json: vocab_size"


@pytest.mark.parametrize(
    ("field", "alias"),
    [
        ("hidden_size", "n_embd"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layer"),
        ("num_hidden_layers", "num_layers"),
        ("max_position_embeddings", "model_max_length"),
        ("max_position_embeddings", "n_positions"),
        ("max_position_embeddings", "max_sequence_length"),
        ("rms_norm_eps", "norm_eps"),
        ("rms_norm_eps", "layer_norm_eps"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("rms_norm_eps", "rms_norm_epsilon"),
    ],
)
def test_other_spellings_are_read_with_a_note(tmp_path: Path, field: str, alias: str) -> None:
    config = {alias if key == field else key: value for key, value in FACTS.items()}
    report = from_config(tmp_path, config)
    assert getattr(target_of(report), field) == FACTS[field]
    assert said(report) == [f"DC245 {field} {FACTS[field]} was read from {alias}"]


def test_the_own_spelling_wins(tmp_path: Path) -> None:
    report = from_config(tmp_path, FACTS | {"n_embd": 7, "hc_count": 1})
    assert (target_of(report).hidden_size, said(report)) == (64, [])


@pytest.mark.parametrize("nest", ["text_config", "llm_config", "language_config"])
def test_the_inner_mapping_wins_and_tokens_come_from_both(tmp_path: Path, nest: str) -> None:
    inner = FACTS | {"eos_token_id": 5, "bos_token_id": 3, "model_type": "inner"}
    outer = {"hidden_size": 9, "eos_token_id": [6, 5], "bos_token_id": 4, "image_token_id": 11, "model_type": "outer"}
    target = target_of(from_config(tmp_path, outer | {nest: inner}))
    assert (target.hidden_size, target.model_type) == (64, "inner")
    assert (target.eos_token_id, target.bos_token_id) == ((5, 6), 3)
    assert target.special_token_ids == (("image_token_id", 11),)


def test_null_inside_is_absent(tmp_path: Path) -> None:
    target = target_of(from_config(tmp_path, {"vocab_size": 77, "text_config": FACTS | {"vocab_size": None}}))
    assert target.vocab_size == 77


@pytest.mark.parametrize("key", ["n_routed_experts", "num_experts", "num_local_experts", "moe_intermediate_size"])
def test_a_mixture_of_experts_has_no_width_to_give(tmp_path: Path, key: str) -> None:
    assert target_of(from_config(tmp_path, FACTS | {key: 8})).intermediate_size is None
    assert target_of(from_config(tmp_path, FACTS | {key: 0})).intermediate_size == 128
    assert target_of(from_config(tmp_path, {"text_config": FACTS, key: 8})).intermediate_size is None


def test_rope_theta_inside_rope_parameters(tmp_path: Path) -> None:
    assert target_of(from_config(tmp_path, FACTS | {"rope_parameters": {"rope_theta": 5e5}})).rope_theta == 5e5


def test_storage_types_that_a_draft_cannot_have_count_as_bfloat16(tmp_path: Path) -> None:
    assert target_of(from_config(tmp_path, FACTS | {"dtype": "float8_e4m3fn"})).dtype == "bfloat16"
    assert target_of(from_config(tmp_path, FACTS)).dtype == "bfloat16"


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_each_missing_fact_is_reported(tmp_path: Path, key: str) -> None:
    report = from_config(tmp_path, {name: value for name, value in FACTS.items() if name != key})
    assert said(report) == [f"DC242 target config config.json states no {key}"]
    assert report.layout is None


@pytest.mark.parametrize("value", ["64", 64.5, True, 0, -1, [64], {"a": 1}, 10**12])
def test_facts_that_cannot_be_are_reported(tmp_path: Path, value: object) -> None:
    report = from_config(tmp_path, FACTS | {"hidden_size": value})
    assert len(report.diagnostics) == 1
    assert said(report)[0].startswith("DC242 target config config.json states hidden_size")


def test_hints_that_cannot_be_are_dropped(tmp_path: Path) -> None:
    target = target_of(from_config(tmp_path, FACTS | {"num_attention_heads": [8, 8], "head_dim": "x", "rope_theta": 0}))
    assert (target.num_attention_heads, target.head_dim, target.rope_theta) == (None, None, None)


@pytest.mark.parametrize(
    ("extra", "sign"),
    [
        ({"dflash_config": {}}, "it has dflash_config"),
        ({"eagle_config": None}, "it has eagle_config"),
        ({"speculators_model_type": "dflash"}, "it has speculators_model_type"),
        ({"architectures": ["DFlashDraftModel"]}, "its architecture is DFlashDraftModel"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "its architecture is LlamaForCausalLMEagle3"),
    ],
)
def test_drafts_are_refused(tmp_path: Path, extra: dict[str, Any], sign: str) -> None:
    assert said(from_config(tmp_path, FACTS | extra)) == [f"DC243 target config config.json describes a draft: {sign}"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is not JSON: line 1, column 2"),
        (b"", "is not JSON: line 1, column 1"),
        (b"[]", "is not a JSON object"),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 7)"),
        (b"[" * 100_000, "is not JSON that can be read: a number too long or nesting too deep"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON that can be read: a number too long or nesting too deep"),
        (b" " * (4 * 1024 * 1024 + 1), "is larger than 4 MiB"),
    ],
    ids=["open", "empty", "list", "latin", "deep", "long", "large"],
)
def test_unreadable_files(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(data)
    assert said(check("{config: config.json}", tmp_path)) == [f"DC241 target config config.json {words}"]


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert said(check("{config: nowhere.json}", tmp_path)) == ["DC241 target config nowhere.json does not exist"]
    assert said(check("{config: empty}", tmp_path)) == ["DC241 target config empty does not exist"]
    assert said(check('{config: "a/\\0b"}', tmp_path))[0].startswith("DC241 ")
    assert said(check("{config: /dev/null}", tmp_path)) == ["DC241 target config /dev/null is not a file"]


def test_shipped_layouts_may_not_read_files() -> None:
    assert said(check("{config: config.json}"))[0].startswith("DC241 target config config.json is not read")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("qwen3-5b", "qwen3-4b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen3-4B", "qwen3-4b"),
    ],
)
def test_unknown_presets_suggest(asked: str, meant: str) -> None:
    report = check(asked)
    assert said(report) == [f"DC240 no target preset is called {asked}"]
    assert report.diagnostics[0].help == f"did you mean `{meant}`? or write `target: {{config: path}}`"


def test_nothing_near_lists_what_there_is() -> None:
    assert "qwen3-4b" in check("zzz").diagnostics[0].help


def test_tokens_without_a_row_are_warned_of_each() -> None:
    facts = "hidden_size: 64, num_hidden_layers: 36, vocab_size: 100"
    report = check(
        f"{{{facts}, bos_token_id: 100, eos_token_id: [5, 300], special_token_ids: {{image_token_id: 101}}}}"
    )
    assert said(report) == [
        "DC244 bos_token_id 100 of the target has no row: vocab_size is 100",
        "DC244 eos_token_id 300 of the target has no row: vocab_size is 100",
        "DC244 image_token_id 101 of the target has no row: vocab_size is 100",
    ]


@pytest.mark.parametrize("name", list_targets())
def test_presets_agree_with_the_schema(name: str) -> None:
    facts = preset(name).facts
    text = json.dumps(facts)
    root = read(text, "preset.json").root
    assert root is not None
    assert check_subschema(root, load("layout-1")["$defs"]["targetInline"], ("target",)) == ()
    assert list(facts) == [key for key in properties("targetInline") if key in facts]
    assert preset(name).source == facts["name_or_path"]
    assert said(check(name)) == []


def test_presets_have_a_row_for_each_token_and_whole_heads() -> None:
    for target in map(preset_target, list_targets()):
        ids = [target.bos_token_id, target.pad_token_id, *target.eos_token_id, *dict(target.special_token_ids).values()]
        assert all(token < target.vocab_size for token in ids if token is not None)
        assert target.num_attention_heads is not None
        assert target.num_key_value_heads is not None
        assert target.num_attention_heads % target.num_key_value_heads == 0


def test_unknown_preset_raises_key_error() -> None:
    with pytest.raises(KeyError):
        preset("qwen9")
