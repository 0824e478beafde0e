"""Cached keys keep the frequencies they were turned with, so frequencies must not change while a text grows."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, distinct, finding, integer, top
from draftc.spec.rules.ropes import Scaled, scaled

CODE = Code("DC282", "rope-depends-on-length", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find scalings whose frequencies change within reach: dynamic, and longrope with two different lists."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "dynamic", "longrope"):
        limit = _limit(parts, each)
        if limit is not None:
            kind = each.scaling.rope_type
            yield finding(
                CODE,
                f"{kind} changes its frequencies past position {limit.value}; keys cached before keep the old ones",
                Fact("rope_type", kind, parts.span(*each.place, "scaling", "rope_type")),
                [limit],
                "use yarn or linear, or stay below that position",
            )


def _limit(parts: Parts, each: Scaled) -> Fact | None:
    """The last position with the first frequencies; None when no position lies beyond."""
    longest = integer(parts, "max_position_embeddings")
    if each.scaling.rope_type == "dynamic":
        return None if longest is None else top(parts, "max_position_embeddings")
    original = each.given("original_max_position_embeddings")
    same = each.scaling.get("short_factor") == each.scaling.get("long_factor")
    beyond = original is not None and (longest is None or original < longest)
    return each.scaling_fact("original_max_position_embeddings") if beyond and not same else None
