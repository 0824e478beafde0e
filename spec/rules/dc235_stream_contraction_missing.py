"""A target with several residual streams can be read in two ways, and fc's width depends on which."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_target

CODE = Code("DC235", "stream-contraction-missing", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a target with streams and no word on how they are read."""
    if parts.target is None or parts.target.hc_mult == 1 or parts.states("target_stream_contraction"):
        return
    streams, width = parts.target.hc_mult, parts.target.hidden_size
    yield finding(
        CODE,
        f"the target's hidden states are {streams} streams of {width} and target_stream_contraction is not stated",
        of_target(parts, "hc_mult"),
        [of_target(parts, "hidden_size")],
        "state `target_stream_contraction: mean` (what servers capture) or `none`",
    )
