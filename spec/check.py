"""The driver: text to nodes, schema, resolution, rules; every finding of one run, sorted."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from draftc.spec.diagnostic import Code, Diagnostic, LayoutError, Severity
from draftc.spec.finding import broken_pointers
from draftc.spec.layout import Layout
from draftc.spec.parts import Parts
from draftc.spec.reader import read
from draftc.spec.resolve import freeze, resolve
from draftc.spec.rules import RULES, dc132_allow_unused
from draftc.spec.schema_check import check_schema
from draftc.spec.span import Span


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that one run over a layout found.

    `layout` is None when there is an error. `diagnostics` are sorted by file, line, column and code; `allowed` holds
    those that the layout's own `allow` accepts.
    """

    file: str
    text: str
    layout: Layout | None
    diagnostics: tuple[Diagnostic, ...]
    allowed: tuple[Diagnostic, ...] = ()

    def require(self) -> Layout:
        """Return the layout; raises LayoutError with every finding when there is an error."""
        if self.layout is None:
            raise LayoutError(self.diagnostics)
        return self.layout


def check_text(data: bytes | str, file: str, folder: Path | None) -> CheckReport:
    """Check a layout and resolve it; bad input becomes diagnostics, never an exception.

    `file` is how messages call the text. `folder` is what the path of a target's config is relative to, None where
    none may be read (shipped layouts).
    """
    document = read(data, file)
    if document.root is None:
        return _report(file, document.text, document.diagnostics, None)
    shape = tuple(check_schema(document.root))
    broken = broken_pointers(document.root, shape)
    resolution = resolve(document.root, broken, folder)
    early = (*document.diagnostics, *(found.diagnostic for found in shape), *resolution.diagnostics)
    return _report(file, document.text, (*early, *_apply_rules(resolution.parts, early)), resolution.parts)


def _apply_rules(parts: Parts, early: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Run every rule; what they and the earlier steps found decides which entries of `allow` are unused."""
    found = [diagnostic for rule in RULES for diagnostic in rule.check(parts)]
    return (*found, *dc132_allow_unused.check_found(parts, (*early, *found)))


def _report(file: str, text: str, found: tuple[Diagnostic, ...], parts: Parts | None) -> CheckReport:
    ordered = sorted(_distinct(found), key=lambda diagnostic: diagnostic.order)
    accepted = parts.allow if parts is not None else ()
    allowed = tuple(one for one in ordered if _is_allowed(one, accepted))
    shown = tuple(one for one in ordered if not _is_allowed(one, accepted))
    is_whole = parts is not None and all(one.severity is not Severity.ERROR for one in ordered)
    return CheckReport(file, text, freeze(parts) if parts is not None and is_whole else None, shown, allowed)


def _distinct(found: tuple[Diagnostic, ...]) -> Iterable[Diagnostic]:
    """One finding for each code, place and message, the one with the fewest notes.

    Attentions that inherit a wrong value are wrong for one cause; notes on inheritance stand in all but the first.
    """
    kept: dict[tuple[Code, Span, str], Diagnostic] = {}
    for one in sorted(found, key=lambda diagnostic: len(diagnostic.notes)):
        kept.setdefault((one.code, one.span, one.message), one)
    return kept.values()


def _is_allowed(found: Diagnostic, accepted: tuple[str, ...]) -> bool:
    return found.severity is not Severity.ERROR and found.code.number in accepted
