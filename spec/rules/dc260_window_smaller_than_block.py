"""A window that does not hold a block hides slots of the block from each other, and all context from most of them."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_attention, top, windows

CODE = Code("DC260", "window-smaller-than-block", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find windows below block_size."""
    block = integer(parts, "block_size")
    for name, window in windows(parts):
        if block is not None and window < block:
            yield finding(
                CODE,
                f"sliding_window {window} of {name} is smaller than block_size {block}",
                of_attention(parts, name, "sliding_window"),
                [top(parts, "block_size")],
                f"use {block + 1} or more",
            )
