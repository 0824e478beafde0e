"""Findings for programs: a versioned envelope, described by `schemas/report-1.schema.json`."""

import json
from math import isfinite

from draftc.spec.diagnostic import Diagnostic, Label, Severity
from draftc.spec.render.report import Report, Reports, count
from draftc.spec.source import Source
from draftc.spec.span import Position, Span

FORMAT_VERSION = "1.0"


def render(reports: Reports) -> str:
    """Return the envelope as JSON. Lines, columns and bytes count from 1; a range ends before its `end`.

    A column counts characters, a byte those of UTF-8 without a byte order mark; a place in another file than the
    layout has no byte.
    """
    errors = count(reports, Severity.ERROR)
    envelope = {
        "format_version": FORMAT_VERSION,
        "valid": errors == 0,
        "error_count": errors,
        "warning_count": count(reports, Severity.WARNING),
        "note_count": count(reports, Severity.NOTE),
        "allowed_count": sum(len(report.allowed) for report in reports),
        "diagnostics": [found for report in reports for found in _diagnostics(report)],
    }
    return json.dumps(envelope, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _diagnostics(report: Report) -> list[dict[str, object]]:
    source = Source(report.file, report.text)
    return [_diagnostic(found, source) for found in report.diagnostics]


def _diagnostic(found: Diagnostic, source: Source) -> dict[str, object]:
    return {
        "code": found.code.number,
        "name": found.code.name,
        "severity": found.severity.value,
        "message": found.message,
        **_place(found.span, source),
        "secondary": [_label(label, source) for label in found.secondary],
        "notes": list(found.notes),
        "help": found.help or None,
        "values": {name: plain(value) for name, value in found.values},
    }


def _label(label: Label, source: Source) -> dict[str, object]:
    return {"message": label.message, **_place(label.span, source)}


def _place(span: Span, source: Source) -> dict[str, object]:
    known = source if span.file == source.file else None
    return {"file": span.file, "range": {"start": _position(span.start, known), "end": _position(span.end, known)}}


def _position(position: Position, source: Source | None) -> dict[str, int]:
    place = {"line": position.line, "column": position.column}
    return place if source is None else {**place, "byte": source.byte_offset(position.offset) + 1}


def plain(value: object) -> object:
    """Return `value` as JSON can hold it; numbers that it cannot hold, and everything else, become text."""
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)
