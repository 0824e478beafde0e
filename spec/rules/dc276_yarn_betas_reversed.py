"""yarn leaves frequencies above beta_fast turns alone and divides those below beta_slow turns."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding, number, own_first
from draftc.spec.rules.ropes import scaled

CODE = Code("DC276", "yarn-betas-reversed", Severity.ERROR)
FAST, SLOW = 32, 1


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find yarn scalings whose beta_fast is the smaller one, stated or by default."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "yarn"):
        fast, slow = each.given("beta_fast") or FAST, each.given("beta_slow") or SLOW
        if fast < slow:
            both = each.states("beta_fast") and each.states("beta_slow")
            facts = (each.fact("scaling", "beta_fast", value=fast), each.fact("scaling", "beta_slow", value=slow))
            yield finding(
                CODE,
                f"beta_fast {number(fast)} is below beta_slow {number(slow)}",
                *own_first(*facts),
                "swap them" if both else f"state both; the defaults are {FAST} and {SLOW}",
            )
