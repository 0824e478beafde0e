"""A masked slot is embedded as the mask token: a token that already means something says it in every slot."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Target
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, integer, listed, top
from draftc.spec.span import Span

CODE = Code("DC251", "mask-token-is-special", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a mask token that is also a named token of the target; one without a row is DC250 alone."""
    mask = integer(parts, "mask_token_id")
    if mask is None or parts.target is None or mask >= parts.target.vocab_size:
        return
    names = [name for name, token in named_tokens(parts.target) if token == mask]
    if names:
        yield finding(
            CODE,
            f"mask_token_id {mask} is also the target's {listed(dict.fromkeys(names))}",
            top(parts, "mask_token_id"),
            [Fact(name, mask, _place(parts, name)) for name in dict.fromkeys(names)],
            "use a reserved or unused id; masked slots would be embedded as that token",
        )


def named_tokens(target: Target) -> Iterator[tuple[str, int]]:
    """Yield every token that the target gives a meaning; its own mask token means what the draft's does."""
    single = (("bos_token_id", target.bos_token_id), ("pad_token_id", target.pad_token_id))
    yield from ((name, token) for name, token in single if token is not None)
    yield from (("eos_token_id", token) for token in target.eos_token_id)
    yield from ((name, token) for name, token in target.special_token_ids if name != "mask_token_id")


def _place(parts: Parts, name: str) -> Span:
    inside = ("special_token_ids", name) if parts.states("target", "special_token_ids", name) else (name,)
    return parts.span("target", *inside)
