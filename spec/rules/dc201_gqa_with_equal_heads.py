"""Grouped attention with as many key/value heads as query heads groups nothing: the language calls it mha."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa
from draftc.spec.nodes import find
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, head_counts
from draftc.spec.rules.ropes import chain

CODE = Code("DC201", "gqa-with-equal-heads", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find gqa attentions whose two head counts are equal."""
    for name, spec in every(parts, Gqa):
        heads = spec.num_attention_heads
        if heads == spec.num_key_value_heads and _says_gqa(parts, name):
            yield finding(
                CODE,
                f"{name} is gqa with {heads} query heads and {heads} key/value heads",
                *head_counts(parts, name),
                "write `kind: mha` and drop num_key_value_heads, or lower it",
            )


def _says_gqa(parts: Parts, name: str) -> bool:
    """Whether the attention states key/value heads, itself or through a base: mha has no such key."""
    return any(find(parts.root, (*parts.place(each), "num_key_value_heads")) for each in chain(parts, name))
