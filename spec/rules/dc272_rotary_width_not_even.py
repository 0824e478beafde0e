"""Channels turn in pairs: their number is head_dim times partial_rotary_factor and must be whole and even."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, listed, number, of_attention, own_first
from draftc.spec.rules.ropes import Turned, turned

CODE = Code("DC272", "rotary-width-not-even", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find gqa and mha attentions whose rotated channels do not pair up."""
    for each in turned(parts):
        if not isinstance(each.attention, Gqa):
            continue
        if each.pairs is None:
            yield _uneven(parts, each, each.attention.head_dim)
        elif each.attention.head_dim % 2 and each.rope.scaling and each.rope.scaling.rope_type == "proportional":
            yield finding(
                CODE,
                f"head_dim {each.attention.head_dim} of {each.name} is odd, and proportional pairs the whole head",
                of_attention(parts, each.name, "head_dim"),
                [each.fact("scaling", "rope_type", value="proportional")],
                "use an even head_dim",
            )


def _uneven(parts: Parts, each: Turned, head_dim: int) -> Diagnostic:
    factor = each.rope.partial_rotary_factor
    facts = (each.fact("partial_rotary_factor", value=factor), of_attention(parts, each.name, "head_dim"))
    return finding(
        CODE,
        f"head_dim {head_dim} x partial_rotary_factor {number(factor)} = {number(float(each.width))} channels to rotate"
        f" in {each.name}; it must be an even whole number",
        *own_first(*facts),
        _advice(head_dim),
    )


def _advice(head_dim: int) -> str:
    """Factors of quarters that give an even number of channels; whether any does is up to head_dim."""
    fits = [quarter / 4 for quarter in (1, 2, 3, 4) if head_dim * quarter % 8 == 0]
    if not fits:
        return "use an even head_dim"
    return f"use a factor that gives an even number of channels, e.g. {listed(fits[:2], last='or')}"
