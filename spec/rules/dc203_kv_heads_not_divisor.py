"""Every key/value head serves the same number of query heads."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa
from draftc.spec.parts import Parts
from draftc.spec.rules.base import counted, every, finding, head_counts, listed, proper_divisors

CODE = Code("DC203", "kv-heads-not-divisor", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find attentions whose query heads are not a multiple of their key/value heads."""
    for name, spec in every(parts, Gqa):
        heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
        if kv_heads < heads and heads % kv_heads:
            yield finding(
                CODE,
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
                *head_counts(parts, name),
                f"nearest: {_query_heads(heads, kv_heads)}, or {_key_value_heads(heads, kv_heads)}",
            )


def _query_heads(heads: int, kv_heads: int) -> str:
    """The multiples around `heads`; as many query heads as key/value heads would be mha."""
    below = heads // kv_heads * kv_heads
    around = [count for count in (below, below + kv_heads) if count > kv_heads]
    return f"{listed(around, last='or')} query heads"


def _key_value_heads(heads: int, kv_heads: int) -> str:
    """The proper divisors around `kv_heads`; beyond the largest there is only mha."""
    divisors = proper_divisors(heads)
    around = [max(each for each in divisors if each < kv_heads)]
    around += [each for each in divisors if each > kv_heads][:1]
    if len(around) == 2:
        return f"{listed(around, last='or')} key/value heads"
    return f"{counted(around[0], 'key/value head')}, or `kind: mha`"
