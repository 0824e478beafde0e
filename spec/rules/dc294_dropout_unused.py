"""attention_dropout acts on softmax weights, and kda has none."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, dropout, finding, stack

CODE = Code("DC294", "dropout-unused", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find dropout in a draft of kda layers only."""
    at, layers = dropout(parts), stack(parts)
    if at is not None and layers and all(layer.kind == "kda" for layer in layers):
        yield finding(
            CODE,
            f"{at} has no effect: every layer is kda",
            at,
            [Fact("layers", len(layers), parts.span("layers"))],
            "delete attention_dropout",
        )
