"""A stated attention_factor replaces the formula on cos and sin, so what feeds the formula is lost."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding, listed
from draftc.spec.rules.ropes import Scaled, scaled

CODE = Code("DC280", "attention-factor-overrides", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find yarn scalings that state both a result and what it would be computed from."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "yarn"):
        inputs = [each.scaling_fact(key) for key in _replaced(each)]
        if inputs and each.given("attention_factor") is not None:
            at = each.scaling_fact("attention_factor")
            yield finding(
                CODE,
                f"{at} replaces what {listed(inputs)} {'gives' if len(inputs) == 1 else 'give'}",
                at,
                inputs,
                f"keep attention_factor or {'the pair' if len(inputs) == 2 else inputs[0].name}",
            )


def _replaced(each: Scaled) -> list[str]:
    """The stated inputs of the formula; on mla mscale_all_dim alone still scales the softmax."""
    stated = [key for key in ("mscale", "mscale_all_dim") if each.given(key) is not None]
    return [] if isinstance(each.attention, Mla) and stated == ["mscale_all_dim"] else stated
