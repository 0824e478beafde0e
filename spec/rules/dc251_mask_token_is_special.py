"""A masked slot is embedded as the mask token: a token that already means something says it in every slot."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, integer, listed, top
from draftc.spec.target import named_tokens

CODE = Code("DC251", "mask-token-is-special", Severity.WARNING)
OWN = "mask_token_id"  # the target's own mask token means what the draft's does


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a mask token that is also a named token of the target; one without a row is DC250 alone."""
    mask = integer(parts, "mask_token_id")
    if mask is None or parts.target is None or mask >= parts.target.vocab_size:
        return
    meanings = {name: place for name, token, place in named_tokens(parts.target) if token == mask and name != OWN}
    if meanings:
        yield finding(
            CODE,
            f"mask_token_id {mask} is also the target's {listed(meanings)}",
            top(parts, "mask_token_id"),
            [
                Fact(name, mask, parts.span(*place), parts.origins.get(f"/target/{place[1]}"), owner="target.")
                for name, place in meanings.items()
            ],
            "use a reserved or unused id; masked slots would be embedded as that token",
        )
