"""llama3 blends between two wavelengths, and their distance stands in a denominator."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding, number
from draftc.spec.rules.ropes import scaled

CODE = Code("DC277", "llama3-frequencies-reversed", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find llama3 scalings whose high_freq_factor is not the larger one."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "llama3"):
        low, high = each.given("low_freq_factor"), each.given("high_freq_factor")
        if low is not None and high is not None and high <= low:
            yield finding(
                CODE,
                f"high_freq_factor {number(high)} is not above low_freq_factor {number(low)}",
                each.scaling_fact("high_freq_factor"),
                [each.scaling_fact("low_freq_factor")],
                "high_freq_factor is the larger one, usually 4 against 1",
            )
