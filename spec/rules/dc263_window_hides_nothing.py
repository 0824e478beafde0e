"""A window as long as the longest context is full attention under another name."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_attention, top, windows

CODE = Code("DC263", "window-hides-nothing", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find windows that no position lies beyond."""
    longest = integer(parts, "max_position_embeddings")
    for name, window in windows(parts):
        if longest is not None and window >= longest:
            yield finding(
                CODE,
                f"sliding_window {window} of {name} hides nothing within max_position_embeddings {longest}",
                of_attention(parts, name, "sliding_window"),
                [top(parts, "max_position_embeddings")],
                "drop sliding_window, or lower it",
            )
