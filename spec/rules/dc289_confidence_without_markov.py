"""The confidence head can read the Markov head's embedding of the previous token, if there is a Markov head."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dspark
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_family

CODE = Code("DC289", "confidence-without-markov", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a confidence head that asks for a Markov head that is not there."""
    family = parts.family
    if not isinstance(family, Dspark) or family.markov_rank > 0 or not family.enable_confidence_head:
        return
    if family.confidence_head_with_markov:
        yield finding(
            CODE,
            "confidence_head_with_markov needs a Markov head, and markov_rank is 0",
            of_family(parts, "confidence_head_with_markov"),
            [of_family(parts, "markov_rank")],
            "give markov_rank a value, or set confidence_head_with_markov to false",
        )
