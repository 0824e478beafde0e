"""Parameters of attentions at the size of Qwen3-4B and of the big targets, counted by hand."""

import pytest

import draftc
from draftc.compiler.api import CompiledDraft

GQA = 2560 * (32 + 8 + 8) * 128 + 32 * 128 * 2560 + 2 * 128


def attention_parameters(draft: CompiledDraft) -> list[int]:
    units = [draft.program.attention(layer).module for layer in range(len(draft.program.stack))]
    return [sum(parameter.numel() for parameter in unit.parameters()) for unit in units]


def kda(hidden: int, heads: int, width: int, taps: int, full_gate: bool) -> int:
    channels = heads * width
    small = heads + channels + width  # A_log, dt_bias, o_norm
    gate = hidden * channels if full_gate else hidden * width + width * channels
    decay = hidden * width + width * channels
    return 4 * hidden * channels + 3 * channels * taps + hidden * heads + gate + decay + small


def mla(hidden: int, heads: int, query_rank: int, rank: int, plain: int, turned: int, value: int, gate: bool) -> int:
    query = hidden * query_rank + query_rank + query_rank * heads * (plain + turned)
    latent = hidden * (rank + turned) + rank + rank * heads * (plain + value)
    return query + latent + heads * value * hidden * (2 if gate else 1)


def test_two_kda_and_three_gqa_have_610_hundredths_of_a_percent_less_than_five_gqa() -> None:
    found = attention_parameters(draftc.compile("qwen3-4b-2kda-3gqa"))
    small = kda(2560, 16, 128, 4, full_gate=False)
    assert found == [GQA, small, GQA, small, GQA]
    assert (GQA, small) == (26_214_656, 22_218_896)
    assert round(100 * (1 - sum(found) / (5 * GQA)), 2) == 6.10


KIMI_MLA = mla(7168, 96, 1536, 512, 128, 64, 128, gate=True)
KIMI_KDA = kda(7168, 96, 128, 4, full_gate=True)
SMALL_KDA = kda(2560, 16, 128, 4, full_gate=False)
SHIPPED = {
    "qwen3-4b-kda-gqa": [SMALL_KDA, GQA, SMALL_KDA, GQA, GQA],
    "qwen3-4b-kda-scan": [SMALL_KDA, SMALL_KDA, GQA, SMALL_KDA, SMALL_KDA],
    "deepseek-v3-mla-dflash": [mla(7168, 128, 1536, 512, 128, 64, 128, gate=False)] * 5,
    "kimi-k3-mla-dflash": [KIMI_MLA] * 5,
    "kimi-k3-4kda-1mla": [KIMI_KDA, KIMI_KDA, KIMI_MLA, KIMI_KDA, KIMI_KDA],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_stacks(name: str) -> None:
    assert attention_parameters(draftc.compile(name)) == SHIPPED[name]


def test_the_big_attentions_have_the_numbers_that_their_papers_shapes_give() -> None:
    """DeepSeek-V3's attention is 187,107,328 numbers a layer; the others follow from the shapes of the release."""
    assert SHIPPED["deepseek-v3-mla-dflash"][0] == 187_107_328
