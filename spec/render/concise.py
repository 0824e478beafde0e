"""One line a finding: `layout.yaml:6:13: DC105 error: block_size 1 is below 2`."""

from draftc.spec.diagnostic import Diagnostic
from draftc.spec.render.report import Reports


def render(reports: Reports) -> str:
    """Return one line for each finding; empty when there is none."""
    return "".join(f"{line(found)}\n" for report in reports for found in report.diagnostics)


def line(found: Diagnostic) -> str:
    """Return the line of one finding."""
    message = " ".join(found.message.split())
    return f"{found.span}: {found.code.number} {found.severity.value}: {message}"
