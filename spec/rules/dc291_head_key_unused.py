"""A key of a head that is not there says nothing."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dspark
from draftc.spec.nodes import Scalar, find
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding, of_family

CODE = Code("DC291", "head-key-unused", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find keys of a Markov head of rank 0, and of a confidence head that is not enabled."""
    if not isinstance(parts.family, Dspark):
        return
    if parts.family.markov_rank == 0:
        yield from _unused(parts, "markov_head_type", "markov_rank")
    if not parts.family.enable_confidence_head:
        yield from _unused(parts, "confidence_head_with_markov", "enable_confidence_head")


def _unused(parts: Parts, key: str, switch: str) -> Iterator[Diagnostic]:
    """Report `key` if the file writes it; the typed family holds no value for it then."""
    node = find(parts.root, ("dspark", key))
    if isinstance(node, Scalar):
        off = of_family(parts, switch)
        at = Fact(key, node.value, node.span)
        yield finding(CODE, f"{at} has no effect: {off.name} is {off.word}", at, [off], "delete the key")
