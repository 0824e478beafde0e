"""An accepted warning that does not occur hides the next one of its kind."""

from collections.abc import Iterable, Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, finding

CODE = Code("DC132", "allow-unused", Severity.WARNING)


def check_found(parts: Parts, found: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Find entries of `allow` that meet none of `found`, which is everything that the run reported.

    Silent while the layout has errors: they may keep the accepted warning from being looked for. Entries that are no
    warning at all are DC130 and DC131.
    """
    from draftc.spec.explain import known_codes

    reported = list(found)
    if any(each.severity is Severity.ERROR for each in reported):
        return
    occurring = {each.code.number for each in reported}
    for index, entry in enumerate(parts.allow):
        if entry in known_codes() and entry not in occurring:
            at = Fact("allow", entry, parts.span("allow", index))
            yield finding(CODE, f"{entry} does not occur in this layout", at, advice="delete the entry")
