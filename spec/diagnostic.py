"""One diagnostic, whatever renders it."""

from dataclasses import dataclass, field
from enum import StrEnum

from draftc.spec.span import Span


class Severity(StrEnum):
    """How much a finding weighs. Only an error stops `compile`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Code:
    """Number, name and severity of one kind of diagnostic. Numbers are never reused."""

    number: str
    name: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


@dataclass(frozen=True, slots=True)
class Label:
    """A place and what is to be said of it."""

    span: Span
    message: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding at a place.

    `message` says what is wrong, in lower case, without a full stop, with the numbers that took part.
    Only `help` says what to do; `notes` say where inherited values came from; `values` holds the values
    that took part, by name, for machine-readable renderers.
    """

    code: Code
    message: str
    span: Span
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""
    values: tuple[tuple[str, object], ...] = field(default=(), compare=False)

    @property
    def severity(self) -> Severity:
        """The severity of the code."""
        return self.code.severity

    @property
    def order(self) -> tuple[str, int, int, str]:
        """The key by which diagnostics are sorted: file, line, column, code."""
        return (self.span.file, self.span.start.line, self.span.start.column, self.code.number)


class LayoutError(Exception):
    """A layout has errors; `diagnostics` holds every finding, errors and others."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        errors = [found for found in diagnostics if found.severity is Severity.ERROR]
        first = errors[0] if errors else diagnostics[0]
        more = f" (and {len(errors) - 1} more errors)" if len(errors) > 1 else ""
        super().__init__(f"{first.span}: {first.code.number} {first.message}{more}")
