"""The final norm comes after the streams are joined, so a post-norm tap is narrower than the others."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_target, taps, top

CODE = Code("DC237", "last-tap-is-one-stream", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a post-norm tap of the last layer beside taps of all streams side by side."""
    target, ids = parts.target, taps(parts)
    if target is None or target.hc_mult == 1 or parts.values.get("target_stream_contraction") != "none":
        return
    last = target.num_hidden_layers - 1
    if last not in ids or parts.values.get("final_tap", "post_norm") == "pre_norm":
        return
    wide = target.hc_mult * target.hidden_size
    others = "the other taps yield" if len(ids) > 1 else "target_stream_contraction none asks for"
    at = top(parts, "final_tap") if parts.states("final_tap") else top(parts, "target_layer_ids")
    lower = f"tap {last - 1} at most, or " if last > 0 else ""
    yield finding(
        CODE,
        f"layer {last} yields {target.hidden_size} channels after the final norm, {others} {wide}",
        at,
        [top(parts, "target_layer_ids"), top(parts, "target_stream_contraction"), of_target(parts, "hc_mult")],
        f"{lower}contract with `mean`, or `final_tap: pre_norm`",
    )
