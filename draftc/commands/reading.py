"""From an argument of the command line to a checked layout."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftc.commands.failure import CommandError

if TYPE_CHECKING:
    from draftc.spec.check import CheckReport
    from draftc.spec.layout import Layout


def report_of(argument: str) -> "CheckReport":
    """Check what `argument` names, a file, `-` or a shipped layout; raises CommandError when it cannot be read."""
    from draftc.spec.check import check_text
    from draftc.spec.sources import SourceError, open_source

    try:
        source = open_source(argument)
    except SourceError as error:
        raise CommandError(str(error), error.help) from None
    return check_text(source.data, source.file, source.folder)


def layout_of(argument: str) -> "tuple[Layout, CheckReport]":
    """Return the layout that `argument` names. Findings go to standard error; errors among them end the run with 1."""
    import typer

    from draftc.spec.render import text

    report = report_of(argument)
    if report.diagnostics:
        typer.echo(text.render([report], color=wants_color(sys.stderr)), err=True, nl=False)
    if report.layout is None:
        raise typer.Exit(1)
    return report.layout, report


def wants_color(stream: object) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and NO_COLOR is unset (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return not os.environ.get("NO_COLOR") and bool(isatty and isatty())


def rendered(reports: "Sequence[CheckReport]", output_format: str) -> str:
    """Return the findings of `reports` in `output_format`."""
    from importlib import import_module

    renderer = import_module(f"draftc.spec.render.{output_format}")
    if output_format == "text":
        return str(renderer.render(reports, color=wants_color(sys.stdout)))
    return str(renderer.render(reports))
