"""Findings for people: message, source frame with carets, notes, help, in the manner of rustc."""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from draftc.spec.diagnostic import Diagnostic, Label, Severity
from draftc.spec.render.report import Reports, summary
from draftc.spec.source import Source
from draftc.spec.span import Span

WIDTH = 140  # columns of a source line that are shown
_TAB = "    "
_COLORS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


@dataclass(frozen=True, slots=True)
class Paint:
    """How pieces of a finding are coloured: by ANSI codes, or not at all."""

    color: bool

    def __call__(self, text: str, *styles: str) -> str:
        """Return `text` in ANSI `styles` (`1` is bold, `31` red)."""
        return f"\x1b[{';'.join(styles)}m{text}\x1b[0m" if self.color and text else text


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on one line: the columns that it underlines, from 1, `end` not included."""

    line: int
    start: int
    end: int
    sign: str
    message: str


def render(reports: Reports, color: bool = False) -> str:
    """Return every finding with its source frame, and a line that counts them. `color` asks for ANSI colours."""
    paint = Paint(color)
    blocks = [
        diagnostic(found, Source(report.file, report.text), paint) for report in reports for found in report.diagnostics
    ]
    return "\n".join([*blocks, f"{_printable(summary(reports))}\n"])


def diagnostic(found: Diagnostic, source: Source, paint: Paint) -> str:
    """Return one finding, ending in a line break."""
    return "".join(f"{line}\n" for line in _lines(found, source, paint))


def _lines(found: Diagnostic, source: Source, paint: Paint) -> Iterator[str]:
    tone = _COLORS[found.severity]
    head = paint(f"{found.severity.value}[{found.code.number} {found.code.name}]", "1", tone)
    yield f"{head}{paint(':', '1')} {paint(_printable(found.message), '1')}"
    here = [label for label in (Label(found.span), *found.secondary) if label.span.file == source.file]
    elsewhere = [label for label in found.secondary if label.span.file != source.file]
    gutter = len(str(max((label.span.start.line for label in here), default=1)))
    yield f"{' ' * gutter}{paint('-->', '34')} {_printable(str(found.span))}"
    if found.span.file == source.file:
        yield from _frame(here, source, gutter, tone, paint)
    yield from _remarks(found, elsewhere, gutter, paint)


def _remarks(found: Diagnostic, elsewhere: Iterable[Label], gutter: int, paint: Paint) -> Iterator[str]:
    sign = f"{' ' * gutter} {paint('=', '34')}"
    for label in elsewhere:
        yield f"{sign} {paint('see', '1')}: {_printable(f'{label.span}: {label.message}')}"
    for note in found.notes:
        yield f"{sign} {paint('note', '1')}: {_printable(note)}"
    if found.help:
        yield f"{sign} {paint('help', '1', '32')}: {_printable(found.help)}"


def _frame(labels: list[Label], source: Source, gutter: int, tone: str, paint: Paint) -> Iterator[str]:
    marks = [_mark(label.span, source, "-" if at else "^", label.message) for at, label in enumerate(labels)]
    bar = f"{' ' * gutter} {paint('|', '34')}"
    yield bar
    last = 0
    for number in sorted({mark.line for mark in marks}):
        if last and number > last + 1:
            yield paint("...", "34") if number > last + 2 else _source_line(number - 1, source, gutter, paint)
        yield _source_line(number, source, gutter, paint)
        for mark in sorted((one for one in marks if one.line == number), key=lambda one: one.sign, reverse=True):
            yield f"{bar} {_underline(mark, source.line(number), tone, paint)}".rstrip()
        last = number


def _mark(span: Span, source: Source, sign: str, message: str) -> Mark:
    line = span.start.line
    end = span.end.column if span.end.line == line else len(source.line(line)) + 1
    return Mark(line, span.start.column, max(end, span.start.column + 1), sign, message)


def _source_line(number: int, source: Source, gutter: int, paint: Paint) -> str:
    text = _printable(source.line(number))
    shown = text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
    return f"{paint(f'{number:>{gutter}} |', '34')} {shown}".rstrip()


def _underline(mark: Mark, line: str, tone: str, paint: Paint) -> str:
    before = _columns(line[: mark.start - 1])
    length = max(1, _columns(line[mark.start - 1 : mark.end - 1]))
    if before >= WIDTH:
        before, length = WIDTH - 3, 3
    signs = mark.sign * min(length, WIDTH - before)
    message = f" {_printable(mark.message)}" if mark.message else ""
    return f"{' ' * before}{paint(f'{signs}{message}', *(('1', tone) if mark.sign == '^' else ('34',)))}"


def _printable(text: str) -> str:
    """Return `text` with tabs as spaces and without what a terminal would obey."""
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    if letter == "\t":
        return _TAB
    return "\ufffd" if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") else letter


def _columns(text: str) -> int:
    """Return how many terminal columns `text` fills: wide letters fill two, combining ones none."""
    return sum(_width(letter) for letter in _printable(text))


def _width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
