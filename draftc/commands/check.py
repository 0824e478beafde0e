"""`draftc check`: every problem of one or more layouts, in one run, without torch."""

from enum import StrEnum
from typing import Annotated

import typer

from draftc.commands.options import Layouts
from draftc.commands.reading import rendered, report_of

EXAMPLES = (
    "draftc check layout.yaml other.yaml",
    "draftc check - < layout.yaml",
    "draftc check layout.yaml --format github --deny-warnings",
)


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def check(
    layouts: Layouts,
    output_format: Annotated[Format, typer.Option("--format", "-f", help="How findings are written.")] = Format.TEXT,
    deny_warnings: Annotated[bool, typer.Option(help="Exit 1 on warnings as well.")] = False,
) -> None:
    """Check layouts: every problem in one run, each at its line, each with a way out."""
    from draftc.spec.diagnostic import Severity

    reports = [report_of(layout) for layout in layouts]
    typer.echo(rendered(reports, output_format), nl=False)
    counted = {Severity.ERROR, Severity.WARNING} if deny_warnings else {Severity.ERROR}
    if any(found.severity in counted for report in reports for found in report.diagnostics):
        raise typer.Exit(1)
