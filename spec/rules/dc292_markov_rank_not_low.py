"""The Markov head is a low-rank table of token pairs; a rank as wide as the draft is not low."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dspark
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_family, top

CODE = Code("DC292", "markov-rank-not-low", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a rank that reaches hidden_size."""
    hidden = integer(parts, "hidden_size")
    if isinstance(parts.family, Dspark) and hidden is not None and parts.family.markov_rank >= hidden:
        yield finding(
            CODE,
            f"markov_rank {parts.family.markov_rank} is not below hidden_size {hidden}",
            of_family(parts, "markov_rank"),
            [top(parts, "hidden_size")],
            "public drafts use 256",
        )
