"""Compressed and plain context in one draft means two layouts of cache, which servers do not expect of a draft."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa, Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_attention, stack

CODE = Code("DC226", "context-kinds-mixed", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a stack that reads context through mla and through gqa or mha."""
    layers = stack(parts)
    if {Gqa, Mla} <= {type(layer) for layer in layers}:
        readers = [name for name, spec in parts.attentions.items() if isinstance(spec, (Gqa, Mla))]
        yield finding(
            CODE,
            "context enters through compressed (mla) and plain (gqa, mha) layers",
            Fact("layers", len(layers), parts.span("layers")),
            [of_attention(parts, name, "kind") for name in readers],
            "use one of the two in all layers that read context, or allow DC226",
        )
