"""Tools for hybrid models take it for granted that some layer keeps keys and values."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Kda
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_attention, stack

CODE = Code("DC225", "stack-all-recurrent", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a stack of kda layers only that does read context (if it does not, that is DC220)."""
    layers = stack(parts)
    if not all(isinstance(layer, Kda) for layer in layers) or not any(layer.sees_context for layer in layers):
        return
    who = "the one layer is" if len(layers) == 1 else f"all {len(layers)} layers are"
    yield finding(
        CODE,
        f"{who} recurrent; trainers and servers of hybrids expect a gqa, mha or mla layer",
        Fact("layers", len(layers), parts.span("layers")),
        [of_attention(parts, name, "kind") for name in parts.attentions],
        "put a gqa, mha or mla layer into `layers`",
    )
