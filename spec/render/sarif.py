"""SARIF 2.1.0, what code scanning reads: https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""

import json
from urllib.parse import quote

from draftc.spec.diagnostic import Code, Diagnostic, Label
from draftc.spec.render.json import plain
from draftc.spec.render.report import Report, Reports
from draftc.spec.span import Span

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(reports: Reports) -> str:
    """Return one SARIF run with a rule for each code that occurs; what `allow` accepts is there as suppressed."""
    codes = sorted({found.code for report in reports for found in _every(report)}, key=lambda code: code.number)
    places = {code.number: index for index, code in enumerate(codes)}
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(reports, codes, places)]}
    return json.dumps(log, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _every(report: Report) -> tuple[Diagnostic, ...]:
    return (*report.diagnostics, *report.allowed)


def _run(reports: Reports, codes: list[Code], places: dict[str, int]) -> dict[str, object]:
    shown = [_result(found, places) for report in reports for found in report.diagnostics]
    accepted = [
        {**_result(found, places), "suppressions": [{"kind": "inSource", "justification": "listed in `allow`"}]}
        for report in reports
        for found in report.allowed
    ]
    artifacts = list(dict.fromkeys(report.file for report in reports))
    return {
        "tool": {"driver": {"name": "draftc", "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": _artifact(file)} for file in artifacts],
        "results": [*shown, *accepted],
    }


def _rule(code: Code) -> dict[str, object]:
    return {
        "id": code.number,
        "name": code.name,
        "shortDescription": {"text": code.name.replace("-", " ")},
        "help": {"text": f"draftc explain {code.number}"},
        "defaultConfiguration": {"level": code.severity.value},
    }


def _result(found: Diagnostic, places: dict[str, int]) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": found.code.number,
        "ruleIndex": places[found.code.number],
        "level": found.severity.value,
        "message": {"text": _words(found)},
        "locations": [{"physicalLocation": _location(found.span)}],
    }
    if found.secondary:
        result["relatedLocations"] = [_related(label, number) for number, label in enumerate(found.secondary)]
    if found.values:
        result["properties"] = {"values": {name: plain(value) for name, value in found.values}}
    return result


def _words(found: Diagnostic) -> str:
    notes = [f"note: {note}" for note in found.notes]
    advice = [f"help: {found.help}"] if found.help else []
    return "\n".join([found.message, *notes, *advice])


def _related(label: Label, number: int) -> dict[str, object]:
    related: dict[str, object] = {"id": number, "physicalLocation": _location(label.span)}
    return {**related, "message": {"text": label.message}} if label.message else related


def _location(span: Span) -> dict[str, object]:
    region = {
        "startLine": span.start.line,
        "startColumn": span.start.column,
        "endLine": span.end.line,
        "endColumn": span.end.column,
        "charOffset": span.start.offset,
        "charLength": max(0, span.end.offset - span.start.offset),
    }
    return {"artifactLocation": _artifact(span.file), "region": region}


def _artifact(file: str) -> dict[str, str]:
    return {"uri": quote(file.replace("\\", "/"), safe="/:@!$&'()*+,;=~")}
