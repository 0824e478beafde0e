"""Workflow commands that GitHub shows beside the lines of a pull request.

Form and escapes: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from draftc.spec.diagnostic import Diagnostic, Severity
from draftc.spec.render.report import Reports

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(reports: Reports) -> str:
    """Return one workflow command for each finding."""
    return "".join(f"{command(found)}\n" for report in reports for found in report.diagnostics)


def command(found: Diagnostic) -> str:
    """Return the workflow command of one finding; `endColumn` is the last column of the span, on one line only."""
    properties = {"file": found.span.file, "line": found.span.start.line, "endLine": found.span.end.line}
    if found.span.start.line == found.span.end.line:
        properties["col"] = found.span.start.column
        properties["endColumn"] = max(found.span.start.column, found.span.end.column - 1)
    properties["title"] = str(found.code)
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{_COMMANDS[found.severity]} {listed}::{_data(_words(found))}"


def _words(found: Diagnostic) -> str:
    labels = [f"{label.span}: {label.message}" for label in found.secondary]
    notes = [f"note: {note}" for note in found.notes]
    advice = [f"help: {found.help}"] if found.help else []
    return "\n".join([found.message, *labels, *notes, *advice])


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
