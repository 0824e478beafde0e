"""A token beyond the embedding is the mark of a config that was put together from two models."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, named_tokens, of_target, token_place

CODE = Code("DC244", "target-token-without-row", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find named tokens of the target that its embedding has no row for; all of them in one finding."""
    if parts.target is None:
        return
    rows = parts.target.vocab_size
    outside = [
        Fact(name, token, token_place(parts, name)) for name, token in named_tokens(parts.target) if token >= rows
    ]
    if outside:
        yield finding(
            CODE,
            f"{outside[0]} of the target has no row: vocab_size is {rows}",
            outside[0],
            [*outside[1:], of_target(parts, "vocab_size")],
            "the target's config is inconsistent; check vocab_size",
        )
