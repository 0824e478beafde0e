"""Rules fire exactly where a few lines of arithmetic, written without them, say that they must."""

from fractions import Fraction
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from draftc.spec.check import check_text
from draftc.spec.diagnostic import Diagnostic
from tests.spec.changes import LANGUAGE, base_of, changed

BASE = base_of(LANGUAGE.read_text("utf-8"))
FOLDER = Path(__file__).parent
quick = settings(max_examples=50, deadline=None)


def diagnostics(change: str) -> tuple[Diagnostic, ...]:
    return check_text(changed(BASE, change).encode(), "base.yaml", FOLDER).diagnostics


def codes(change: str) -> set[str]:
    return {each.code.number for each in diagnostics(change)}


@quick
@given(st.integers(1, 64), st.integers(1, 64))
def test_head_divisibility(heads: int, kv_heads: int) -> None:
    if kv_heads == heads:
        expected = {"DC201"}
    elif kv_heads > heads:
        expected = {"DC202"}
    else:
        expected = {"DC203"} if heads / kv_heads != heads // kv_heads else set()
    assert codes(f"context: {{num_attention_heads: {heads}, num_key_value_heads: {kv_heads}}}") == expected


@quick
@given(st.integers(2, 64), st.integers(2, 64))
def test_nearest_head_counts_repair_it(heads: int, kv_heads: int) -> None:
    for found in diagnostics(f"context: {{num_attention_heads: {heads}, num_key_value_heads: {kv_heads}}}"):
        if found.code.number == "DC203":
            queries, _, pairs = found.help.removeprefix("nearest: ").partition(" query heads, or ")
            for number in queries.split(" or "):
                assert int(number) in range(2 * kv_heads, 10**4, kv_heads)
            for number in filter(str.isdigit, pairs.split()):
                assert heads in range(2 * int(number), 10**4, int(number))


@quick
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True), st.integers(1, 48))
def test_taps(ids: list[int], depth: int) -> None:
    expected = set()
    if any(each >= depth for each in ids):
        expected.add("DC230")
    if ids != sorted(ids):
        expected.add("DC231")
    if depth - 1 in ids:
        expected.add("DC232")
    assert codes(f"target: {{num_hidden_layers: {depth}}}\ntarget_layer_ids: {ids}") == expected


@quick
@given(st.integers(2, 24), st.integers(1, 48), st.integers(2, 48))
def test_windows(block: int, window: int, longest: int) -> None:
    change = f"""
block_size: {block}
max_position_embeddings: {longest}
near: {{extends: context, is_causal: true, sliding_window: {window}}}"""
    seen_by_last_slot = [distance for distance in range(block, longest) if distance < window]
    in_block = range(block)
    block_whole = all(abs(one - other) < window for one in in_block for other in in_block)
    expected = set()
    if not block_whole:
        expected.add("DC260")
    elif window == block:
        assert seen_by_last_slot == []
        expected.add("DC261")
    if all(distance < window for distance in range(longest)):
        expected.add("DC263")
    if longest <= block:
        expected.add("DC254")
    assert codes(change) == expected


@quick
@given(st.integers(1, 300), st.integers(1, 100))
def test_rope_widths(head_dim: int, percent: int) -> None:
    factor = f"{percent / 100:.2f}"
    change = (
        f"context: {{head_dim: {head_dim}}}\nrope: {{style: half, rope_theta: 10000, partial_rotary_factor: {factor}}}"
    )
    fits = (head_dim * percent) % 200 == 0
    assert codes(change) == (set() if fits else {"DC272"})


@quick
@given(st.integers(1, 40).map(lambda half: 2 * half), st.integers(1, 60), st.integers(1, 60))
def test_longrope_lists(head_dim: int, short: int, long: int) -> None:
    change = f"""
context: {{head_dim: {head_dim}}}
rope: {{style: half, rope_theta: 10000, scaling: {{
  rope_type: longrope, factor: 10, original_max_position_embeddings: 4096,
  short_factor: {[1.0] * short}, long_factor: {[2.0] * long}}}}}"""
    assert ("DC278" in codes(change)) == (2 * short != head_dim or 2 * long != head_dim)


@quick
@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_suggested_yarn_factor_repairs_the_length(original: int, longest: int) -> None:
    def change(factor: str) -> str:
        return f"""
max_position_embeddings: {longest}
block_size: 2
rope: {{style: half, rope_theta: 10000, scaling: {{
  rope_type: yarn, factor: {factor}, original_max_position_embeddings: {original}}}}}"""

    found = {each.code.number: each for each in diagnostics(change("1"))}
    assert ("DC275" in found) == (original >= longest)
    assert ("DC274" in found) == (original < longest)
    if "DC274" in found:
        suggestion = found["DC274"].help.rpartition("factor ")[2]
        assert abs(Fraction(suggestion) * original - longest) <= Fraction(1, 2)
        assert "DC274" not in codes(change(suggestion))


@quick
@given(st.integers(2, 20), st.integers(0, 24), st.booleans())
def test_domino_prefix(block: int, prefix: int, shifted: bool) -> None:
    word = "true" if shifted else "false"
    change = f"""
family: domino
domino: {{gru_hidden_dim: 64, emb_dim: 8, pure_draft_prefix_len: {prefix}, shift_label: {word}}}
block_size: {block}"""
    drafted = range(block - 1) if shifted else range(1, block)
    corrected = [slot for slot in drafted if slot >= prefix + (not shifted)]
    assert ("DC288" in codes(change)) == (corrected == [])


@quick
@given(st.integers(1, 200), st.sampled_from([96, 100, 2560, 97, 1]))
def test_conv_groups(group: int, hidden: int) -> None:
    change = f"""
family: dflash2
dflash2: {{conv_kernel_size: 2, conv_group_size: {group}, selector_rank: 16, selector_top_k: 4}}
target: {{hidden_size: {hidden}}}"""
    found = [each for each in diagnostics(change) if each.code.number == "DC286"]
    assert bool(found) == (hidden % group != 0)
    for each in found:
        examples = each.help.partition("e.g. ")[2].replace(" or ", ", ").split(", ")
        assert all(hidden % int(example) == 0 for example in examples)


@quick
@given(st.integers(0, 20), st.lists(st.integers(0, 20), min_size=1, max_size=3, unique=True), st.integers(0, 20))
def test_special_tokens(mask: int, ends: list[int], image: int) -> None:
    change = f"""
target: {{vocab_size: 21, bos_token_id: 0, eos_token_id: {ends}, special_token_ids: {{image_token_id: {image}}}}}
mask_token_id: {mask}"""
    assert ("DC251" in codes(change)) == (mask in {0, image, *ends})
