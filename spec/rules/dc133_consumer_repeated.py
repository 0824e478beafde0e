"""`serve_on` is a list of engines: naming one twice asks for nothing more."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding

CODE = Code("DC133", "consumer-repeated", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find consumers that are named more than once with the same number of ranks."""
    ranks = [(each.name, each.tensor_parallel_size or 1) for each in parts.serve_on]
    for name, size in dict.fromkeys(ranks):
        facts = [
            Fact("consumer", name, parts.span("serve_on", i)) for i, each in enumerate(ranks) if each == (name, size)
        ]
        if len(facts) > 1:
            times = "twice" if len(facts) == 2 else f"{len(facts)} times"
            yield finding(CODE, f"serve_on names {name} {times}", facts[1], facts[:1], "keep one of them")
