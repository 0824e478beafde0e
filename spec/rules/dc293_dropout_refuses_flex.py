"""flex attention has no dropout, so a draft with dropout trains on a slower backend."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import dropout, finding, stack

CODE = Code("DC293", "dropout-refuses-flex", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find dropout in a draft with softmax attention."""
    at = dropout(parts)
    if at is not None and any(layer.kind != "kda" for layer in stack(parts)):
        message = f"{at} rules out flex while training"
        yield finding(CODE, message, at, advice="train on eager or sdpa, or set 0.0")
