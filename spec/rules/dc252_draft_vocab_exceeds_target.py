"""A reduced vocabulary is a choice among the target's tokens."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_target, top

CODE = Code("DC252", "draft-vocab-exceeds-target", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a draft vocabulary that is larger than the target's."""
    rows = integer(parts, "draft_vocab_size")
    if rows is not None and parts.target is not None and rows > parts.target.vocab_size:
        yield finding(
            CODE,
            f"draft_vocab_size {rows} exceeds the target's vocab_size {parts.target.vocab_size}",
            top(parts, "draft_vocab_size"),
            [of_target(parts, "vocab_size")],
            "drop it to share the target's head",
        )
