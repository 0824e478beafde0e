"""A draft that reads nothing of the target's context can only guess from the last token."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_attention, stack

CODE = Code("DC220", "no-context-enters", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a stack in which every layer starts from zero."""
    layers = stack(parts)
    if not layers or any(layer.sees_context for layer in layers):
        return
    who = "its one layer is" if len(layers) == 1 else f"all {len(layers)} are"
    yield finding(
        CODE,
        f"no layer lets the target's context in: {who} kda with context_state reset",
        Fact("layers", len(layers), parts.span("layers")),
        [of_attention(parts, name, "context_state") for name in parts.attentions],
        "put a gqa, mha or mla layer into `layers`, or set `context_state: scan`",
    )
