"""Attentions and layers written out: who extends whom, what a layer names, what a name becomes."""

from pathlib import Path

import pytest

from draftc.spec.check import CheckReport, check_text
from draftc.spec.layout import Gqa, Layout, Mla

HEAD = """draftc: 1
name: base
family: dflash
target: {hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000, intermediate_size: 128,
  max_position_embeddings: 4096, rms_norm_eps: 1e-6}
target_layer_ids: [1, 9]
block_size: 8
mask_token_id: 7
rope: {style: half, rope_theta: 10000}
"""
CONTEXT = "context: {kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}"
LATENT = (
    "latent: {kind: mla, num_attention_heads: 4, q_lora_rank: null, kv_lora_rank: 32, qk_nope_head_dim: 8, "
    "qk_rope_head_dim: 8, v_head_dim: 16, rms_norm_eps: 1e-6, rope: {style: interleaved, rope_theta: 500}}"
)


def check(*attentions: str, layers: str = "[context]", more: str = "") -> CheckReport:
    block = "\n".join(f"  {line}" for line in (CONTEXT, *attentions))
    text = f"{HEAD}attentions:\n{block}\nlayers: {layers}\n{more}"
    return check_text(text, "base.yaml", Path("/nonexistent"))


def layout(*attentions: str, layers: str = "[context]", more: str = "") -> Layout:
    return check(*attentions, layers=layers, more=more).require()


def codes(report: CheckReport) -> list[str]:
    return [found.code.number for found in report.diagnostics]


def only(report: CheckReport) -> str:
    (found,) = report.diagnostics
    return f"{found.code.number} {found.message}"


def gqa(made: Layout, name: str) -> Gqa:
    spec = made.attentions[name]
    assert isinstance(spec, Gqa)
    return spec


def test_keys_of_an_extending_attention_replace_whole_values() -> None:
    made = layout(
        "far: {extends: near, rope: {style: interleaved, rope_theta: 5}}",
        "near: {extends: context, sliding_window: 16, is_causal: true, head_dim: 32}",
        "open: {extends: near, sliding_window: null, is_causal: false}",
        layers="[near, far, open]",
    )
    near, far, open_ = (gqa(made, name) for name in ("near", "far", "open"))
    assert (near.num_attention_heads, near.head_dim, near.sliding_window, near.is_causal) == (4, 32, 16, True)
    assert near.rope is not None
    assert near.rope.rope_theta == 10000.0
    assert far.rope is not None
    assert (far.rope.style, far.rope.rope_theta, far.rope.partial_rotary_factor) == ("interleaved", 5.0, 1.0)
    assert (far.sliding_window, far.is_causal, far.head_dim) == (16, True, 32)
    assert (open_.sliding_window, open_.is_causal) == (None, False)


def test_inherited_keys_keep_their_place_and_name_the_nearest_base_that_writes_them() -> None:
    made = layout("near: {extends: context, qk_norm: false}", "far: {extends: near, head_dim: 32}", layers="[far]")
    origin = made.origins["/attentions/far/num_attention_heads"]
    assert (origin.via, origin.span and origin.span.start.line) == ("extends context", 11)
    assert made.origins["/attentions/far/qk_norm"].via == "extends near"
    assert made.origins["/attentions/far/head_dim"].via == "layout"
    assert made.origins["/attentions/far/attention_bias"].via == "default"
    assert made.origins["/attentions/far/rope/rope_theta"].via == "top-level rope"


def test_mla_takes_no_rope_from_the_top_level() -> None:
    latent = layout(LATENT, layers="[latent]").attentions["latent"]
    assert isinstance(latent, Mla)
    assert latent.rope is not None
    assert latent.rope.rope_theta == 500.0


def test_top_level_none_is_a_rope() -> None:
    report = check_text(
        f"{HEAD.replace('{style: half, rope_theta: 10000}', 'none')}attentions:\n  {CONTEXT}\nlayers: [context]\n",
        "base.yaml",
        None,
    )
    assert gqa(report.require(), "context").rope is None


def test_bases_may_come_later_and_need_no_layer() -> None:
    made = layout("near: {extends: far, qk_norm: false}", "far: {extends: context, head_dim: 8}", layers="[near]")
    assert list(made.attentions) == ["near"]
    assert gqa(made, "near").head_dim == 8


def test_a_base_without_rope_or_causality_is_no_error_when_unused() -> None:
    text = HEAD.replace("rope: {style: half, rope_theta: 10000}\n", "")
    text += f"attentions:\n  {CONTEXT}\n  wide: {{extends: context, sliding_window: 64}}\n"
    text += "  used: {extends: wide, is_causal: true, rope: none}\nlayers: [used]\n"
    assert codes(check_text(text, "base.yaml", None)) == []


@pytest.mark.parametrize(
    ("attentions", "cycle"),
    [
        (("near: {extends: near}",), "near -> near"),
        (("near: {extends: a}", "a: {extends: b}", "b: {extends: a}"), "a -> b -> a"),
        (("a: {extends: b}", "b: {extends: near}", "near: {extends: a}"), "a -> b -> near -> a"),
    ],
)
def test_a_cycle_is_reported_once_and_silences_what_hangs_on_it(attentions: tuple[str, ...], cycle: str) -> None:
    assert only(check(*attentions, layers="[near, context]")) == f"DC122 {cycle} is a cycle"


def test_an_attention_in_place_is_no_base() -> None:
    report = check("y: {extends: layer1}", layers="[context, {attention: {extends: y, qk_norm: false}}]")
    assert only(report) == "DC121 attentions.y extends layer1, which is not in attentions"


def test_unknown_base_in_place() -> None:
    report = check(layers="[context, {attention: {extends: contxt}}]")
    assert only(report) == "DC121 layer 1 extends contxt, which is not in attentions"
    assert report.diagnostics[0].help == "did you mean `context`?"


def test_a_broken_base_silences_what_extends_it() -> None:
    report = check("wide: {kind: gqa, num_attention_heads: 4}", "near: {extends: wide}", layers="[near, context]")
    assert set(codes(report)) == {"DC102"}


def test_a_wrong_value_for_the_kind_stands_where_it_is_written() -> None:
    report = check("near: {extends: context, output_gate: low_rank}", layers="[near, context]")
    (found,) = report.diagnostics
    assert (found.code.number, found.span.start.line) == ("DC104", 12)
    report = check(LATENT, "l2: {extends: latent, rope: {style: half, rope_theta: 5, partial_rotary_factor: 0.5}}")
    assert "DC109" in codes(report)


def test_every_own_key_that_the_kind_lacks_is_reported() -> None:
    report = check("near: {extends: context, kv_lora_rank: 5, num_heads: 3}", layers="[near, context]")
    assert [found.message.split()[0] for found in report.diagnostics] == ["kv_lora_rank", "num_heads"]
    assert codes(report) == ["DC123", "DC123"]
    assert report.diagnostics[1].help.endswith("`kind: kda`")


def test_layers_in_every_spelling() -> None:
    made = layout(
        "near: {extends: context, qk_norm: false}",
        layers="[near, {attention: context}, {repeat: 2, of: [context, {attention: near}]}, "
        "{attention: {extends: near, head_dim: 8}}]",
    )
    assert [layer.name for layer in made.layers] == ["near", "context", "context", "near", "context", "near", "layer6"]
    assert [layer.index for layer in made.layers] == list(range(7))
    assert gqa(made, "layer6").head_dim == 8


def test_copies_of_an_attention_in_place_share_its_description_and_name() -> None:
    report = check(layers="[context, {repeat: 3, of: [{attention: {extends: context, qk_norm: false}}]}]")
    assert codes(report) == []
    assert [layer.name for layer in report.require().layers] == ["context", "layer1", "layer1", "layer1"]


@pytest.mark.parametrize(("times", "depth"), [(128, 256), (129, 258), (256, 512)])
def test_the_limit_of_layers_counts_what_repeat_writes(times: int, depth: int) -> None:
    report = check(layers=f"[{{repeat: {times}, of: [context, context]}}]")
    if depth <= 256:
        assert len(report.require().layers) == depth
    else:
        assert only(report) == f"DC128 layers expands to {depth} layers; the limit is 256"


def test_an_unknown_name_in_a_repeat_is_reported_once() -> None:
    report = check("spare: {extends: context, qk_norm: false}", layers="[context, {repeat: 5, of: [contxt]}]")
    assert only(report) == "DC120 layer 1 names contxt, which is not in attentions"


def test_equal_attentions_are_reported_whatever_way_they_are_written() -> None:
    report = check(
        "same: {kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, qk_norm: true,"
        " rope: {style: half, rope_theta: 1e4}}",
        layers="[context, same]",
    )
    assert only(report) == "DC125 same and context are the same attention"


def test_names_in_place_collide_with_names_of_the_same_class() -> None:
    report = check(
        "layer_1: {extends: context, qk_norm: false}",
        layers="[layer_1, {attention: {extends: context, attention_bias: true}}]",
    )
    assert only(report) == "DC126 layer_1 and layer1 would both become class Layer1Attention"


def test_unused_attentions_are_silent_while_a_layer_is_unknown() -> None:
    spare = "spare: {extends: context, qk_norm: false}"
    assert only(check(spare)) == "DC124 no layer uses spare"
    assert codes(check(spare, layers="[context, nobody]")) == ["DC120"]


def test_one_missing_rope_is_one_error() -> None:
    text = HEAD.replace("rope: {style: half, rope_theta: 10000}\n", "")
    text += f"attentions:\n  {CONTEXT}\n  near: {{extends: context, qk_norm: false}}\nlayers: [context, near]\n"
    assert only(check_text(text, "base.yaml", None)) == (
        "DC270 context states no rope and the layout has none at top level"
    )
    broken = text.replace("block_size", "rope: {style: half}\nblock_size")
    assert codes(check_text(broken, "base.yaml", None)) == ["DC102"]


def test_one_window_without_causality_is_one_error() -> None:
    report = check(
        "near: {extends: context, sliding_window: 64}", "far: {extends: near, head_dim: 8}", layers="[near, far]"
    )
    assert only(report) == "DC262 near slides over 64 tokens and does not state is_causal"


def test_aliases_are_attentions_of_their_own() -> None:
    made = layout("other: {extends: wide}", "wide: &w {extends: context, head_dim: 8}", "third: *w", layers="[third]")
    assert gqa(made, "third").head_dim == 8
