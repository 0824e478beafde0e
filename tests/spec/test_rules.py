"""What findings carry beside their message: places, origins and values; and when rules are silent."""

import re
from pathlib import Path

import pytest

from draftc.spec import rules
from draftc.spec.check import check_text
from draftc.spec.diagnostic import Diagnostic, Severity
from draftc.spec.explain import known_codes
from draftc.spec.layout import Dflash, Dflash2, Domino, Dspark, Family, Gqa, Kda, Mla, Rope, RopeScaling, Target
from draftc.spec.nodes import Mapping
from draftc.spec.parts import Parts
from draftc.spec.rules import RULES, dc132_allow_unused
from draftc.spec.rules.base import Fact, counted, listed, number, proper_divisors
from draftc.spec.span import Origin, Position, Span
from tests.spec.changes import LANGUAGE, base_of, changed

BASE = base_of(LANGUAGE.read_text("utf-8"))
FOLDER = Path(__file__).parent
NOWHERE = Span("hand-made", Position(1, 1, 0), Position(1, 1, 0))

LINEAR = "rope: {style: half, rope_theta: 10000, scaling: {rope_type: linear, factor: 2}}\n"
YARN = """rope: {style: half, rope_theta: 10000, scaling: {
  rope_type: yarn, factor: 10, original_max_position_embeddings: 4096%s}}"""
DFLASH2 = """family: dflash2
dflash2: {conv_kernel_size: 2, conv_group_size: %d, selector_rank: 8, selector_top_k: 4}"""


def diagnostics(change: str) -> tuple[Diagnostic, ...]:
    return check_text(changed(BASE, change).encode(), "base.yaml", FOLDER).diagnostics


def codes(change: str) -> set[str]:
    return {each.code.number for each in diagnostics(change)}


def found(change: str, code: str) -> list[Diagnostic]:
    return [each for each in diagnostics(change) if each.code.number == code]


def one(change: str, code: str) -> Diagnostic:
    (diagnostic,) = found(change, code)
    return diagnostic


def text_at(change: str, span: Span) -> str:
    return changed(BASE, change)[span.start.offset : span.end.offset]


def places(change: str, code: str) -> list[str]:
    """The texts that the finding points at, the primary one first."""
    finding = one(change, code)
    return [text_at(change, span) for span in (finding.span, *(label.span for label in finding.secondary))]


TWO_PLACES = {
    "DC203": ("context: {num_key_value_heads: 6}", ["6", "32"]),
    "DC204": ("hidden_size: 1024", ["1024", "2560"]),
    "DC213": ("latent: {MLA, q_lora_rank: 4096}", ["4096", "2560", "32"]),
    "DC222": ("recurrent: {KDA}\nblock_size: 2", ["4", "2"]),
    "DC230": ("target_layer_ids: [1, 40, 50]", ["40", "50", "36"]),
    "DC231": ("target_layer_ids: [1, 9, 5]", ["5", "9"]),
    "DC237": (
        "target: {hc_mult: 4}\ntarget_stream_contraction: none\nfinal_tap: post_norm\ntarget_layer_ids: [35]",
        ["post_norm", "[35]", "none", "4"],
    ),
    "DC250": ("mask_token_id: 151936", ["151936", "151936"]),
    "DC251": ("mask_token_id: 151645", ["151645", "151645"]),
    "DC254": ("max_position_embeddings: 16", ["16", "16"]),
    "DC260": ("near: {extends: context, is_causal: true, sliding_window: 8}", ["8", "16"]),
    "DC274": (
        YARN.replace("10,", "4,") % "",
        ["4", "4096", "40960"],
    ),
    "DC295": ("dtype: float32\ntarget: {dtype: float16}", ["float32", "float16"]),
}


@pytest.mark.parametrize("code", TWO_PLACES)
def test_conflicts_point_at_every_place(code: str) -> None:
    change, texts = TWO_PLACES[code]
    assert places(change, code) == texts


def test_repeated_consumer_points_at_both() -> None:
    assert places("serve_on: [zlab, vllm, zlab]", "DC133") == ["zlab", "zlab"]


def test_the_key_that_an_attention_states_itself_is_the_culprit() -> None:
    change = "near: {extends: context, num_attention_heads: 12}"
    assert places(change, "DC203") == ["12", "8"]
    assert one(change, "DC203").notes == ("num_key_value_heads 8 is inherited from context",)


def test_notes_name_the_preset() -> None:
    finding = one("target: qwen3-4b\nhidden_size: 1024", "DC204")
    assert finding.notes == ("hidden_size 2560 comes from preset qwen3-4b: hidden_size",)
    assert text_at("target: qwen3-4b\nhidden_size: 1024", finding.secondary[0].span) == "qwen3-4b"


def test_notes_name_the_target() -> None:
    finding = one("block_size: 4096\nmax_position_embeddings: 4096", "DC254")
    assert finding.notes == ()
    assert one("target: {max_position_embeddings: 16}", "DC254").notes == (
        "max_position_embeddings 16 is the target's",
    )


def test_notes_name_defaults() -> None:
    finding = one("context: {head_dim: 15}", "DC272")
    assert finding.notes == ("partial_rotary_factor 1 is the default",)
    assert finding.secondary == ()


def test_values_tell_the_draft_from_the_target() -> None:
    assert dict(one("hidden_size: 1024", "DC204").values) == {"hidden_size": 1024, "target.hidden_size": 2560}


MESSAGES = {
    "one layer without context": (
        "recurrent: {KDA}\nlayers: [recurrent]\nrope: null",
        "DC220",
        "no layer lets the target's context in: its one layer is kda with context_state reset",
    ),
    "one recurrent layer": (
        "recurrent: {KDA, context_state: scan}\nlayers: [recurrent]\nrope: null",
        "DC225",
        "the one layer is recurrent; trainers and servers of hybrids expect a gqa, mha or mla layer",
    ),
    "one idle tap": (
        "recurrent: {KDA, short_conv_kernel_size: 3}\nblock_size: 2",
        "DC222",
        "short_conv_kernel_size 3 of recurrent exceeds block_size 2: with context_state reset 1 tap always reads zeros",
    ),
    "a draft with its own head": (
        "hidden_size: 1024\ndraft_vocab_size: 32000",
        "DC204",
        "hidden_size 1024 differs from the target's 2560: input_proj is added (2621440 parameters)",
    ),
    "several meanings of a mask": (
        "target: {pad_token_id: 7, eos_token_id: [5, 7], special_token_ids: {image_token_id: 7}}\nmask_token_id: 7",
        "DC251",
        "mask_token_id 7 is also the target's pad_token_id, eos_token_id and image_token_id",
    ),
    "both keys of a rope": (
        LINEAR.replace("10000", "10000, partial_rotary_factor: 0.5")
        + "near: {extends: context, rope: {style: half, rope_theta: 5000}}",
        "DC271",
        "the rope of near replaces that of context and drops partial_rotary_factor 0.5 and scaling linear",
    ),
    "a rope without a base": (
        LINEAR + "near: {kind: mha, num_attention_heads: 8, head_dim: 64, rope: {style: half, rope_theta: 5000}}",
        "DC271",
        "the rope of near replaces that of the top level and drops scaling linear",
    ),
    "mha": (
        "attentions: {}\ncontext: {kind: mha, num_attention_heads: 8, head_dim: 64}\n"
        + YARN % ", mscale: 0.5, mscale_all_dim: 0.5",
        "DC281",
        "mscale 0.5 = mscale_all_dim on mha: cos and sin take factor 1 and nothing scales the softmax",
    ),
    "shifted labels": (
        "family: domino\ndomino: {gru_hidden_dim: 64, emb_dim: 8, pure_draft_prefix_len: 15, shift_label: true}",
        "DC288",
        "pure_draft_prefix_len 15 starts the correction at slot 15 of block_size 16, whose slots 0..14 draft",
    ),
    "a consumer three times": ("serve_on: [zlab, zlab, zlab]", "DC133", "serve_on names zlab 3 times"),
    "a single tap of one stream": (
        "target: {hc_mult: 2}\ntarget_stream_contraction: none\nfinal_tap: post_norm\ntarget_layer_ids: [35]",
        "DC237",
        "layer 35 yields 2560 channels after the final norm, target_stream_contraction none asks for 5120",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message(name: str) -> None:
    change, code, message = MESSAGES[name]
    assert one(change, code).message == message


HELPS = {
    "seven query heads": ("context: {num_attention_heads: 7, num_key_value_heads: 2}", "DC203",
                          "nearest: 6 or 8 query heads, or 1 key/value head, or `kind: mha`"),
    "no proper divisor": ("context: {num_attention_heads: 1, num_key_value_heads: 2}", "DC202",
                          "one query head leaves only `kind: mha`, or raise num_attention_heads"),
    "a prime": ("context: {num_attention_heads: 7, num_key_value_heads: 8}", "DC202",
                "num_key_value_heads divides num_attention_heads: 1"),
    "unusual groups": ("target: {hidden_size: 2502}\n" + DFLASH2 % 5, "DC286",
                       "use a divisor of hidden_size, e.g. 2, 3 or 6"),
    "one tap": ("recurrent: {KDA, short_conv_kernel_size: 1}", "DC221", "use 2, or accept the plain convolution"),
    "a default beta": (YARN % ", beta_slow: 64", "DC276",
                       "state both; the defaults are 32 and 1"),
    "no rope for kda": ("recurrent: {KDA, context_state: scan}\nlayers: [recurrent]", "DC273",
                        "delete the top-level rope; kda has none"),
}  # fmt: skip


@pytest.mark.parametrize("name", HELPS)
def test_help(name: str) -> None:
    change, code, advice = HELPS[name]
    assert one(change, code).help == advice


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (-5.0, "-5"), (0.3, "0.3"), (True, "true"), (False, "false"), (7, "7"), (1e6, "1000000"), ("x", "x")],
)
def test_numbers_print_as_on_the_language_page(value: object, text: str) -> None:
    assert number(value) == text


def test_prose() -> None:
    assert listed([1, 2, 4]) == "1, 2 and 4"
    assert listed([1, 2], last="or") == "1 or 2"
    assert listed([1]) == "1"
    assert (counted(1, "tap"), counted(2, "tap")) == ("1 tap", "2 taps")
    assert proper_divisors(12) == [1, 2, 3, 4, 6]
    assert proper_divisors(1) == []


def test_fact_of_a_default_has_no_place() -> None:
    assert Fact("hc_mult", 1, NOWHERE, Origin("default")).label is None
    assert Fact("hc_mult", 4, NOWHERE, Origin("layout", NOWHERE)).label is not None


def test_broken_target_silences_what_reads_it() -> None:
    report = check_text(
        changed(BASE, "target: nothing\ntarget_layer_ids: [40, 1]\nmask_token_id: 999999").encode(), "x", FOLDER
    )
    assert {each.code.number for each in report.diagnostics} == {"DC240", "DC231"}


def test_broken_attention_silences_rules_about_it_and_the_stack() -> None:
    change = "latent: {MLA, kv_lora_rank: none}\nnear: {extends: context, sliding_window: 8, is_causal: true}"
    assert {each.code.number for each in check_text(changed(BASE, change).encode(), "x", FOLDER).diagnostics} == {
        "DC103",
        "DC260",
    }


EMPTY = Parts(Mapping((), NOWHERE), {}, None, None, {}, None)
ROPE = Rope("half", 10000.0, 0.5, RopeScaling("yarn", (("factor", 4.0), ("original_max_position_embeddings", 4096))))
HALF = {
    "gqa": Gqa(32, 8, 128, ROPE, True, False, "none", 64, True),
    "mla": Mla(32, None, 512, 128, 64, 128, 1e-6, ROPE, False, "none", None, False),
    "kda": Kda(16, 128, 4, -5.0, "low_rank", "reset"),
}
FAMILIES: tuple[Family, ...] = (
    Dflash(),
    Dflash2(2, 16, 256, 16),
    Domino(64, 8, 1, True),
    Dspark(True, 0, None, False, None),
)


def test_attentions_that_inherit_a_wrong_value_are_one_finding() -> None:
    change = "context: {num_key_value_heads: 6}\nnear: {extends: context, sliding_window: 512, is_causal: true}\n"
    found = check_text(changed(BASE, change + "layers: [near, context, near]"), "base.yaml", None).diagnostics
    assert [one.code.number for one in found] == ["DC203"]
    assert found[0].notes == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.CODE.number)
def test_rules_are_silent_about_what_is_absent(rule: rules.Rule) -> None:
    assert list(rule.check(EMPTY)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.CODE.number)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_rules_bear_parts_that_are_half_there(rule: rules.Rule, family: Family) -> None:
    """Attentions without a whole stack and top-level values, a family without a target: no rule raises."""
    target = Target(2560, 36, 151936)
    for parts in (
        Parts(EMPTY.root, {}, None, family, HALF, None),
        Parts(EMPTY.root, {}, target, None, HALF, ("gqa", "mla", "gone")),
        Parts(EMPTY.root, {"block_size": 16, "target_layer_ids": (1, 2)}, target, family, HALF, ("gqa", "kda")),
    ):
        assert all(isinstance(each, Diagnostic) for each in rule.check(parts))


def test_rules_stand_in_order_one_per_file() -> None:
    numbers = [rule.CODE.number for rule in (*RULES, dc132_allow_unused)]
    files = sorted(path.stem for path in (LANGUAGE.parents[1] / "spec" / "rules").glob("dc*.py"))
    assert numbers[:-1] == sorted(numbers[:-1])
    assert files == sorted(
        f"{known_codes()[each].number}_{known_codes()[each].name}".lower().replace("-", "_") for each in numbers
    )


def test_allow_is_not_called_unused_while_errors_may_hide_its_warning() -> None:
    assert found("target: nothing\nallow: [DC204]\nhidden_size: 1024", "DC132") == []
    assert one("allow: [DC204]", "DC132").severity is Severity.WARNING


def test_messages_are_lower_case_without_full_stop() -> None:
    text = (LANGUAGE.parents[1] / "tests" / "catalogue").glob("*.yaml")
    cases = [case for path in text for case in re.split(r"^#=== .*\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]]
    messages = {each.message for case in cases for each in check_text(case.encode(), "x", FOLDER).diagnostics}
    assert len(messages) > 150
    assert [each for each in messages if each.endswith(".") or re.match(r"[A-Z][a-z]", each)] == []
