"""DFlash2's selector and Domino's correction index the whole table of the target."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dflash2, Domino
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, integer, of_target, top

CODE = Code("DC253", "draft-vocab-must-be-full", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a reduced vocabulary in a family that has none."""
    rows = integer(parts, "draft_vocab_size")
    if rows is None or parts.target is None or not isinstance(parts.family, (Dflash2, Domino)):
        return
    if rows < parts.target.vocab_size:
        family = parts.family.name
        yield finding(
            CODE,
            f"family {family} needs the whole vocabulary: draft_vocab_size {rows} < {parts.target.vocab_size}",
            top(parts, "draft_vocab_size"),
            [Fact("family", family, parts.span("family")), of_target(parts, "vocab_size")],
            "drop draft_vocab_size, or use family dflash or dspark",
        )
