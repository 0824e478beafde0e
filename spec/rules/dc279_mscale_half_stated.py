"""mscale and mscale_all_dim act as a quotient; one of them alone is ignored on cos and sin."""

from collections.abc import Iterator
from math import log

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding
from draftc.spec.rules.ropes import scaled

CODE = Code("DC279", "mscale-half-stated", Severity.WARNING)
PAIR = ("mscale", "mscale_all_dim")


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find yarn scalings that state one of the pair and no attention_factor."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "yarn"):
        stated = [key for key in PAIR if each.given(key) is not None]
        factor = each.given("factor")
        if len(stated) == 1 and factor is not None and each.given("attention_factor") is None:
            (here,) = stated
            other = PAIR[1 - PAIR.index(here)]
            fact = each.scaling_fact(here)
            yield finding(
                CODE,
                f"{fact} is stated without {other}, so cos and sin take the plain factor {plain_factor(factor):.3g}",
                fact,
                [each.scaling_fact("factor")],
                "state both, or neither",
            )


def plain_factor(factor: float) -> float:
    """YaRN's temperature without mscale (Peng et al. 2023, section 3.4): 0.1 ln(factor) + 1."""
    return 0.1 * log(factor) + 1
