"""The draft borrows the target's embedding, so its mask token must be a row of it."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_target, top

CODE = Code("DC250", "mask-token-without-row", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a mask token beyond the physical rows of the target's embedding."""
    mask = integer(parts, "mask_token_id")
    if mask is None or parts.target is None or mask < parts.target.vocab_size:
        return
    last = parts.target.vocab_size - 1
    yield finding(
        CODE,
        f"mask_token_id {mask} has no row: the target's embedding has rows 0..{last}",
        top(parts, "mask_token_id"),
        [of_target(parts, "vocab_size")],
        f"use a spare row of the target's embedding, e.g. one between the tokenizer's length and {last}",
    )
