"""The top-level rope is the default of gqa and mha attentions; when none takes it, it says nothing."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa, Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, stack
from draftc.spec.rules.ropes import TOP, rope_place

CODE = Code("DC273", "rope-unused", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a top-level rope that no attention in use takes."""
    if not parts.states(*TOP) or not stack(parts):
        return
    takers = [name for name, spec in parts.attentions.items() if isinstance(spec, Gqa)]
    if all(rope_place(parts, name) != TOP for name in takers):
        yield finding(
            CODE,
            "no attention takes its rope from the top level",
            Fact("rope", "top level", parts.key_span(*TOP)),
            advice=f"delete the top-level rope; {_reason(parts)}",
        )


def _reason(parts: Parts) -> str:
    kinds = {type(spec) for spec in parts.attentions.values()}
    if Gqa in kinds:
        return "every gqa and mha attention states its own"
    return "mla never reads it" if Mla in kinds else "kda has none"
