"""Slot k sees sliding_window - 1 - k tokens of context, so a window of one block leaves the last slot none."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_attention, top, windows

CODE = Code("DC261", "window-blinds-last-slot", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find windows of exactly block_size."""
    block = integer(parts, "block_size")
    for name, window in windows(parts):
        if window == block:
            yield finding(
                CODE,
                f"sliding_window {window} of {name} equals block_size: slot {window - 1} sees no context",
                of_attention(parts, name, "sliding_window"),
                [top(parts, "block_size")],
                f"slot k sees sliding_window - 1 - k context tokens; use {window + 1} or more",
            )
