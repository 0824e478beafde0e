"""Only warnings and notes can be accepted: a layout with an error does not compile."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding

CODE = Code("DC131", "allow-of-error", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find entries of `allow` that name an error."""
    from draftc.spec.explain import known_codes

    known = known_codes()
    for index, entry in enumerate(parts.allow):
        code = known.get(entry)
        if code is not None and code.severity is Severity.ERROR:
            at = Fact("allow", entry, parts.span("allow", index))
            advice = "repair the error; only warnings can be accepted"
            yield finding(CODE, f"{entry} is an error and cannot be allowed", at, advice=advice)
