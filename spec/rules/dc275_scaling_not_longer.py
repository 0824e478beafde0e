"""Scaling stretches a shorter original length; an original that is not shorter leaves nothing to stretch."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding, integer, top
from draftc.spec.rules.ropes import scaled

CODE = Code("DC275", "scaling-not-longer", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find scalings whose original length reaches the draft's own."""
    longest = integer(parts, "max_position_embeddings")
    if longest is not None:
        yield from distinct(_findings(parts, longest))


def _findings(parts: Parts, longest: int) -> Iterator[Diagnostic]:
    for each in scaled(parts, "yarn", "longrope", "llama3"):
        original = each.given("original_max_position_embeddings")
        if original is not None and original >= longest:
            yield finding(
                CODE,
                f"original_max_position_embeddings {original} is not below max_position_embeddings {longest}:"
                f" {each.scaling.rope_type} then shortens nothing",
                each.scaling_fact("original_max_position_embeddings"),
                [top(parts, "max_position_embeddings")],
                "original_max_position_embeddings is the length before scaling",
            )
