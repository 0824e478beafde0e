"""A rope turns the qk_rope_head_dim channels of an mla; without them it does nothing."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, every, finding, of_attention
from draftc.spec.rules.ropes import rope_place

CODE = Code("DC211", "mla-rope-without-channels", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find mla attentions that state a rope and no channels for it; an empty query is DC210 alone."""
    for name, spec in every(parts, Mla):
        if spec.rope is not None and spec.qk_rope_head_dim == 0 and spec.qk_nope_head_dim > 0:
            yield finding(
                CODE,
                f"{name} states a rope and qk_rope_head_dim 0: there is nothing to rotate",
                of_attention(parts, name, "qk_rope_head_dim"),
                [Fact("rope", spec.rope.style, parts.span(*rope_place(parts, name)))],
                "write `rope: none`, or give qk_rope_head_dim channels",
            )
