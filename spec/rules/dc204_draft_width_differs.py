"""A draft of another width than its target owns projections between the two."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_target, top

CODE = Code("DC204", "draft-width-differs", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a hidden_size that is not the target's."""
    width = integer(parts, "hidden_size")
    if width is None or parts.target is None or width == parts.target.hidden_size:
        return
    theirs = parts.target.hidden_size
    added, accepted, count = _projections(parts)
    yield finding(
        CODE,
        f"hidden_size {width} differs from the target's {theirs}: {added} added ({count * width * theirs} parameters)",
        top(parts, "hidden_size"),
        [of_target(parts, "hidden_size")],
        f"drop hidden_size to take the target's, or accept the {accepted}; only transformers and draftc run them",
    )


def _projections(parts: Parts) -> tuple[str, str, int]:
    """What is added, in words, and how many matrices; a draft with its own head has none back to the target."""
    rows = integer(parts, "draft_vocab_size")
    if rows is not None and parts.target is not None and rows < parts.target.vocab_size:
        return "input_proj is", "projection", 1
    return "input_proj and output_proj are", "two projections", 2
