"""With one stream there is nothing to contract."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_target, top

CODE = Code("DC236", "stream-contraction-unused", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a contraction for a target with one stream."""
    if parts.target is None or parts.target.hc_mult > 1 or not parts.states("target_stream_contraction"):
        return
    yield finding(
        CODE,
        "target_stream_contraction has no effect: the target has one stream",
        top(parts, "target_stream_contraction"),
        [of_target(parts, "hc_mult")],
        "delete it, or state `hc_mult` of the target",
    )
