"""An mla query is made of plain and rotated channels; with neither there is no query."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, of_attention, own_first

CODE = Code("DC210", "mla-empty-head", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find mla attentions whose queries have no channels."""
    for name, spec in every(parts, Mla):
        if spec.qk_nope_head_dim == spec.qk_rope_head_dim == 0:
            yield finding(
                CODE,
                f"{name} has qk_nope_head_dim 0 and qk_rope_head_dim 0: its queries have no channels",
                *own_first(*(of_attention(parts, name, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))),
                "qk_nope_head_dim + qk_rope_head_dim is the width of a query",
            )
