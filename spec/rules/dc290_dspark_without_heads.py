"""DSpark is DFlash with heads; without them only its slot convention is left."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dspark
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_family

CODE = Code("DC290", "dspark-without-heads", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a dspark draft with neither head."""
    family = parts.family
    if isinstance(family, Dspark) and family.markov_rank == 0 and not family.enable_confidence_head:
        yield finding(
            CODE,
            "markov_rank 0 and enable_confidence_head false leave a dspark draft without heads",
            of_family(parts, "markov_rank"),
            [of_family(parts, "enable_confidence_head")],
            "add a head, or use family dflash (its slots predict their own position)",
        )
