"""The order of taps is the order of fc's columns, so an accidental order is a different draft."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, taps

CODE = Code("DC231", "taps-not-ascending", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a list of taps that falls somewhere."""
    ids = taps(parts)
    falls = next((index for index in range(1, len(ids)) if ids[index] < ids[index - 1]), None)
    if falls is not None:
        yield finding(
            CODE,
            f"target_layer_ids {list(ids)} is not ascending; fc sees the features in this order",
            Fact(f"target_layer_ids[{falls}]", ids[falls], parts.span("target_layer_ids", falls)),
            [Fact(f"target_layer_ids[{falls - 1}]", ids[falls - 1], parts.span("target_layer_ids", falls - 1))],
            "write them in ascending order, unless a checkpoint was trained on this one",
        )
