"""`draftc check`: every problem of one or more layouts, in one run, without torch."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.failure import CommandError
from draftc.commands.options import Layouts
from draftc.commands.reading import rendered, report_of

if TYPE_CHECKING:
    from draftc.spec.check import CheckReport

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

    reports, unreadable = reports_of(layouts)
    if reports or not unreadable:
        typer.echo(rendered(reports, output_format), nl=False)
    for failure in unreadable[1:]:
        typer.echo(str(failure), err=True)
    if unreadable:
        raise unreadable[0]
    counted = {Severity.ERROR, Severity.WARNING} if deny_warnings else {Severity.ERROR}
    if any(found.severity in counted for report in reports for found in report.diagnostics):
        raise typer.Exit(1)


def reports_of(layouts: list[str]) -> "tuple[list[CheckReport], list[CommandError]]":
    """What was found in each of `layouts`, and why the others cannot be read: one of them hides nothing of the rest."""
    reports, unreadable = [], []
    for layout in layouts:
        try:
            reports.append(report_of(layout))
        except CommandError as failure:
            unreadable.append(failure)
    return reports, unreadable
