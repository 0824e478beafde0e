"""Where values come from, in which order, and what is left out without a source."""

from fractions import Fraction
from pathlib import Path

import pytest

from draftc.spec.check import CheckReport, check_text
from draftc.spec.defaults import auto_taps
from draftc.spec.layout import Domino, Dspark, Gqa, Layout

FULL = (
    "{hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000, intermediate_size: 128, "
    "max_position_embeddings: 4096, rms_norm_eps: 1e-5, dtype: float16}"
)
CONTEXT = "{kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}"


def check(
    more: str = "", target: str = FULL, taps: str = "[1, 9]", layers: str = "[context]", **keys: str
) -> CheckReport:
    stated = {"family": "dflash", "block_size": "8", "mask_token_id": "7", **keys}
    lines = [
        "draftc: 1",
        "name: base",
        f"target: {target}",
        f"target_layer_ids: {taps}",
        "rope: {style: half, rope_theta: 10000}",
        f"attentions: {{context: {CONTEXT}}}",
        f"layers: {layers}",
        *(f"{key}: {value}" for key, value in stated.items()),
        more,
    ]
    return check_text("\n".join(lines), "base.yaml", Path("/nonexistent"))


def layout(more: str = "", **keys: str) -> Layout:
    return check(more, **keys).require()


def codes(report: CheckReport) -> list[str]:
    return [found.code.number for found in report.diagnostics]


def test_the_target_gives_widths_epsilon_positions_and_dtype() -> None:
    made = layout()
    assert (made.hidden_size, made.rms_norm_eps, made.max_position_embeddings) == (64, 1e-5, 4096)
    assert (made.dtype, made.draft_vocab_size, made.owns_head) == ("float16", 1000, False)
    assert {layer.mlp.intermediate_size for layer in made.layers} == {128}
    assert made.origins["/hidden_size"].via == "target"


def test_what_is_stated_wins() -> None:
    made = layout(
        hidden_size="32",
        intermediate_size="80",
        rms_norm_eps="1e-3",
        max_position_embeddings="99",
        dtype="float32",
        draft_vocab_size="500",
    )
    assert (made.hidden_size, made.rms_norm_eps, made.max_position_embeddings) == (32, 1e-3, 99)
    assert (made.dtype, made.draft_vocab_size, made.owns_head) == ("float32", 500, True)
    assert made.layers[0].mlp.intermediate_size == 80
    assert made.origins["/hidden_size"].via == "layout"


def test_constants() -> None:
    made = layout()
    assert (made.description, made.attention_dropout, made.initializer_range) == ("", 0.0, 0.02)
    assert (made.input_embedding_scale, made.output_multiplier, made.final_logit_softcapping) == (1.0, 1.0, None)
    assert (made.final_tap, made.target_stream_contraction) == (None, None)
    assert made.layers[0].mlp.hidden_act == "silu"


def test_presets_name_their_field_as_origin() -> None:
    made = check(target="qwen3-4b", mask_token_id="151669").require()
    assert (made.hidden_size, made.target.name_or_path) == (2560, "Qwen/Qwen3-4B")
    assert made.origins["/hidden_size"].via == "preset qwen3-4b: hidden_size"
    assert made.origins["/draft_vocab_size"].via == "preset qwen3-4b: vocab_size"


@pytest.mark.parametrize("key", ["intermediate_size", "max_position_embeddings", "rms_norm_eps"])
def test_a_value_that_nobody_states_is_an_error_and_silences_nothing_else(key: str) -> None:
    facts = ", ".join(part for part in FULL[1:-1].split(", ") if not part.startswith(key))
    report = check(target=f"{{{facts}}}", mask_token_id="2000")
    assert codes(report) == ["DC205", "DC250"] or codes(report) == ["DC250", "DC205"]
    assert any(found.message.startswith(f"{key} is not stated") for found in report.diagnostics)


def test_a_broken_value_is_not_missed_again() -> None:
    assert codes(check(target="{hidden_size: 64, num_hidden_layers: 36, vocab_size: 1000}", rms_norm_eps="x")) == [
        "DC205",
        "DC205",
        "DC103",
    ]


def test_a_broken_target_silences_only_what_reads_it() -> None:
    report = check(target="qwen9", block_size="64", max_position_embeddings="32")
    assert codes(report) == ["DC240", "DC254"]


def test_numbers_become_floats_where_the_schema_says_number() -> None:
    made = layout(initializer_range="1", input_embedding_scale="2", final_logit_softcapping="30", attention_dropout="0")
    values = (made.initializer_range, made.input_embedding_scale, made.final_logit_softcapping, made.attention_dropout)
    assert values == (1.0, 2.0, 30.0, 0.0)
    assert {type(value) for value in values} == {float}
    spec = made.attentions["context"]
    assert isinstance(spec, Gqa)
    assert spec.rope is not None
    assert type(spec.rope.rope_theta) is float
    assert type(made.block_size) is int


def exact(layers: int, count: int) -> list[int]:
    """The rule by integers: floor of the sum plus a half, a tie going to the even neighbour."""
    taps = []
    for i in range(count):
        value = Fraction(1) + Fraction(i * (layers - 4), count - 1)
        low = value.numerator // value.denominator
        half = value - low
        taps.append(low + (half > Fraction(1, 2) or (half == Fraction(1, 2) and low % 2 == 1)))
    return taps


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (32, 5, (1, 8, 15, 22, 29)),
        (24, 5, (1, 6, 11, 16, 21)),
        (61, 6, (1, 12, 24, 35, 47, 58)),
        (28, 5, (1, 7, 13, 19, 25)),
        (27, 3, (1, 12, 24)),
        (30, 3, (1, 14, 27)),
        (36, 1, (18,)),
    ],
)
def test_auto_taps_are_those_of_public_drafts(layers: int, count: int, taps: tuple[int, ...]) -> None:
    assert auto_taps(layers, count) == taps
    if count > 1:
        assert exact(layers, count) == list(taps)


def test_auto_follows_the_expanded_depth() -> None:
    made = check(taps="auto", layers="[context, {repeat: 2, of: [context, context]}]").require()
    assert made.target_layer_ids == auto_taps(36, 5)
    assert made.origins["/target_layer_ids"].via == "auto"


@pytest.mark.parametrize(("layers", "depth"), [(6, 5), (3, 2), (2, 3), (4, 2)])
def test_auto_that_collides_descends_or_leaves_the_target_is_refused(layers: int, depth: int) -> None:
    target = FULL.replace("num_hidden_layers: 36", f"num_hidden_layers: {layers}")
    report = check(taps="auto", target=target, layers=f"[{', '.join(['context'] * depth)}]")
    assert codes(report) == ["DC234"]
    assert f"for {depth} taps on {layers} layers" in report.diagnostics[0].message


def test_auto_is_silent_while_the_depth_or_the_target_is_unknown() -> None:
    assert codes(check(taps="auto", layers="[context, nobody]")) == ["DC120"]
    assert codes(check(taps="auto", layers="[{repeat: 300, of: [context]}]")) == ["DC105"]
    assert codes(check(taps="auto", target="qwen9", max_position_embeddings="99", rms_norm_eps="0.1")) == ["DC240"]


def test_final_tap_speaks_only_when_the_last_layer_is_tapped() -> None:
    assert check(taps="[1, 35]").require().final_tap == "post_norm"
    assert check(taps="[1, 35]", final_tap="pre_norm").require().final_tap == "pre_norm"
    assert layout(final_tap="pre_norm").final_tap is None


def test_streams() -> None:
    target = FULL.replace("{", "{hc_mult: 4, ")
    mean = check(target=target, target_stream_contraction="mean").require()
    side = check(target=target, target_stream_contraction="none").require()
    assert (mean.tap_width, mean.context_width) == (64, 128)
    assert (side.tap_width, side.context_width) == (256, 512)
    assert layout(target_stream_contraction="mean").target_stream_contraction is None


def test_dropout_without_softmax_layers_takes_its_default() -> None:
    kda = "{kind: kda, num_heads: 2, head_dim: 8, short_conv_kernel_size: 4, gate_lower_bound: -5, context_state: scan}"
    text = (
        f"draftc: 1\nname: base\nfamily: dflash\ntarget: {FULL}\ntarget_layer_ids: [1]\nblock_size: 8\n"
        f"mask_token_id: 7\nattention_dropout: 0.1\nattentions: {{r: {kda}}}\nlayers: [r]\n"
    )
    report = check_text(text, "base.yaml", None)
    assert "DC294" in codes(report)
    assert report.require().attention_dropout == 0.0


def test_families() -> None:
    domino = layout(
        family="domino", domino="{gru_hidden_dim: 8, emb_dim: 4, pure_draft_prefix_len: 1, shift_label: true}"
    )
    assert domino.family == Domino(8, 4, 1, True)
    block = (
        "{sample_from_anchor: true, markov_rank: 0, markov_head_type: rnn, enable_confidence_head: true, "
        "confidence_head_with_markov: false}"
    )
    dspark = layout(family="dspark", dspark=block)
    assert dspark.family == Dspark(True, 0, None, True, False)
    assert dspark.family.name == "dspark"


def test_consumers_default_to_one_rank() -> None:
    made = layout(serve_on="[transformers, {consumer: zlab, tensor_parallel_size: 2}]")
    assert [(one.name, one.tensor_parallel_size) for one in made.serve_on] == [("transformers", 1), ("zlab", 2)]


def test_allowed_warnings_are_counted_not_shown() -> None:
    report = check(allow="[DC295]", dtype="float32")
    assert codes(report) == []
    assert [found.code.number for found in report.allowed] == ["DC295"]
    assert report.require().allow == ("DC295",)


def test_errors_are_never_allowed() -> None:
    report = check(allow="[DC250]", mask_token_id="5000")
    assert "DC250" in codes(report)
    assert report.layout is None
