"""What renderers read of a run over one layout."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from draftc.spec.diagnostic import Diagnostic, Severity


class Report(Protocol):
    """The findings of one layout; `spec.check.CheckReport` is one."""

    @property
    def file(self) -> str:
        """How messages call the text."""

    @property
    def text(self) -> str:
        """The text, without a byte order mark."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What was found and is not accepted, sorted."""

    @property
    def allowed(self) -> tuple[Diagnostic, ...]:
        """What was found and is accepted by `allow`."""


Reports = Sequence[Report]


def count(reports: Iterable[Report], severity: Severity) -> int:
    """Return how many findings of `severity` the reports show."""
    return sum(found.severity is severity for report in reports for found in report.diagnostics)


def summary(reports: Reports) -> str:
    """Return one line: `2 errors, 1 warning, 1 allowed`, or that nothing was found."""
    counts = [_counted(count(reports, severity), severity.value) for severity in Severity]
    allowed = sum(len(report.allowed) for report in reports)
    parts = [part for part in counts if part] + ([f"{allowed} allowed"] if allowed else [])
    found = ", ".join(parts) if parts else "no problems"
    return f"{found} in {len(reports)} layouts" if len(reports) != 1 else found


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}" if number else ""
