"""proportional differs from linear only in the channels that it does not turn."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, distinct, finding
from draftc.spec.rules.ropes import Scaled, scaled

CODE = Code("DC283", "proportional-is-linear", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find proportional scalings that turn every channel."""
    yield from distinct(_finding(parts, each) for each in scaled(parts, "proportional") if _turns_all(each))


def _turns_all(each: Scaled) -> bool:
    return each.rope.partial_rotary_factor == 1


def _finding(parts: Parts, each: Scaled) -> Diagnostic:
    mla = isinstance(each.attention, Mla)
    return finding(
        CODE,
        f"proportional {'on mla' if mla else 'with partial_rotary_factor 1'} rotates every channel: it is linear",
        Fact("rope_type", "proportional", parts.span(*each.place, "scaling", "rope_type")),
        [each.fact("partial_rotary_factor", value=1)] if parts.states(*each.place, "partial_rotary_factor") else [],
        "use linear" if mla else "state partial_rotary_factor below 1, or use linear",
    )
