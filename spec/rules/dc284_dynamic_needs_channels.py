"""dynamic raises the base to the power r / (r - 2), which two rotated channels do not have."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_attention
from draftc.spec.rules.ropes import scaled

CODE = Code("DC284", "dynamic-needs-channels", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find dynamic scalings of a single pair of channels."""
    for each in scaled(parts, "dynamic"):
        if each.pairs == 1:
            width = "qk_rope_head_dim" if isinstance(each.attention, Mla) else "head_dim"
            yield finding(
                CODE,
                f"dynamic needs more than 2 rotated channels; {each.name} rotates 2",
                Fact("rope_type", "dynamic", parts.span(*each.place, "scaling", "rope_type")),
                [of_attention(parts, each.name, width)],
                "use another rope_type",
            )
