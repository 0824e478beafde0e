"""DFlash2's selector takes the best few tokens of the vocabulary."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dflash2
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, of_family, of_target

CODE = Code("DC287", "selector-exceeds-vocabulary", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find more candidates than there are tokens."""
    if not isinstance(parts.family, Dflash2) or parts.target is None:
        return
    if parts.family.selector_top_k > parts.target.vocab_size:
        yield finding(
            CODE,
            f"selector_top_k {parts.family.selector_top_k} exceeds the vocabulary {parts.target.vocab_size}",
            of_family(parts, "selector_top_k"),
            [of_target(parts, "vocab_size")],
            "lower selector_top_k",
        )
