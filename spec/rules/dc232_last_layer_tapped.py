"""The output of the last layer is handed out before or after the final norm, depending on the engine."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_target, taps

CODE = Code("DC232", "last-layer-tapped", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a tap of the last layer without a word on the final norm."""
    if parts.target is None or parts.states("final_tap"):
        return
    last = parts.target.num_hidden_layers - 1
    ids = taps(parts)
    if last in ids:
        lower = f"tap {last - 1} at most, or " if last > 0 else ""
        yield finding(
            CODE,
            f"target_layer_ids contains the last layer {last} and final_tap is not stated:"
            " engines differ on whether the final norm is applied",
            Fact(f"target_layer_ids[{ids.index(last)}]", last, parts.span("target_layer_ids", ids.index(last))),
            [of_target(parts, "num_hidden_layers")],
            f"{lower}state `final_tap: post_norm` (transformers) or `pre_norm` (SGLang)",
        )
