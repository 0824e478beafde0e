"""final_tap speaks of the target's last layer only."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, number, of_target, taps, top

CODE = Code("DC233", "final-tap-unused", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a stated final_tap whose layer is not tapped; silent while a tap is out of range (DC230)."""
    ids = taps(parts)
    choice = parts.values.get("final_tap")
    if parts.target is None or choice is None or not ids or not parts.states("final_tap"):
        return
    last = parts.target.num_hidden_layers - 1
    if max(ids) < last:
        yield finding(
            CODE,
            f"final_tap {number(choice)} has no effect: layer {last} is not tapped",
            top(parts, "final_tap"),
            [top(parts, "target_layer_ids"), of_target(parts, "num_hidden_layers")],
            "delete final_tap",
        )
