"""A low-rank query projection is low-rank only below both of its sides."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, integer, of_attention, top

CODE = Code("DC213", "mla-query-rank-not-smaller", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find mla attentions whose q_lora_rank compresses nothing."""
    hidden = integer(parts, "hidden_size")
    for name, spec in every(parts, Mla):
        heads, width = spec.num_attention_heads, spec.qk_nope_head_dim + spec.qk_rope_head_dim
        if hidden is None or spec.q_lora_rank is None or width == 0:
            continue
        if spec.q_lora_rank >= min(hidden, heads * width):
            yield finding(
                CODE,
                f"q_lora_rank {spec.q_lora_rank} is not below min(hidden_size {hidden},"
                f" {heads} x {width} query channels)",
                of_attention(parts, name, "q_lora_rank"),
                [top(parts, "hidden_size"), of_attention(parts, name, "num_attention_heads")],
                "write `q_lora_rank: null`, or lower it",
            )
