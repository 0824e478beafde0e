"""A tap is the output of a layer that the target has."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, counted, finding, of_target, taps

CODE = Code("DC230", "tap-out-of-range", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find taps beyond the target's depth; all of them in one finding, since they have one cause."""
    if parts.target is None:
        return
    depth = parts.target.num_hidden_layers
    outside = [
        Fact(f"target_layer_ids[{index}]", tap, parts.span("target_layer_ids", index))
        for index, tap in enumerate(taps(parts))
        if not 0 <= tap < depth
    ]
    if outside:
        yield finding(
            CODE,
            f"{outside[0]} is outside 0..{depth - 1}: the target has {counted(depth, 'layer')}",
            outside[0],
            [*outside[1:], of_target(parts, "num_hidden_layers")],
            f"use 0..{depth - 1}; this list looks made for a deeper target",
        )
