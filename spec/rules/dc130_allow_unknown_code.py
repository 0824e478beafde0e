"""`allow` names codes of the language; anything else accepts nothing."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding

CODE = Code("DC130", "allow-unknown-code", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find entries of `allow` that no diagnostic is called by."""
    from draftc.spec.explain import known_codes

    known = known_codes()
    for index, entry in enumerate(parts.allow):
        if entry not in known:
            at = Fact("allow", entry, parts.span("allow", index))
            yield finding(CODE, f"no diagnostic is called {entry}", at, advice="`draftc explain --list` names them all")
