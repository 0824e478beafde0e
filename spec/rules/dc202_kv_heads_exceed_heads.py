"""Query heads share key/value heads, never the other way round."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, head_counts, listed, proper_divisors

CODE = Code("DC202", "kv-heads-exceed-heads", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find attentions with more key/value heads than query heads."""
    for name, spec in every(parts, Gqa):
        heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
        if kv_heads > heads:
            yield finding(
                CODE,
                f"num_key_value_heads {kv_heads} exceeds num_attention_heads {heads}",
                *head_counts(parts, name),
                _advice(heads),
            )


def _advice(heads: int) -> str:
    divisors = proper_divisors(heads)
    if not divisors:
        return "one query head leaves only `kind: mha`, or raise num_attention_heads"
    return f"num_key_value_heads divides num_attention_heads: {listed(divisors, last='or')}"
