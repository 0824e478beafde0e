"""A block follows at least one token of context, and all of its slots need positions."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, top

CODE = Code("DC254", "block-exceeds-positions", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a block that leaves no position for context."""
    block, longest = integer(parts, "block_size"), integer(parts, "max_position_embeddings")
    if block is not None and longest is not None and block >= longest:
        yield finding(
            CODE,
            f"block_size {block} does not fit into max_position_embeddings {longest}",
            top(parts, "block_size"),
            [top(parts, "max_position_embeddings")],
            "raise max_position_embeddings, or lower block_size",
        )
