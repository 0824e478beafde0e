"""`draftc schema`: the JSON Schema of layouts, for editors and other tools."""

from typing import Annotated

import typer

from draftc.commands.failure import CommandError

EXAMPLES = (
    "draftc schema > layout-1.schema.json",
    "draftc schema report-1",
    "draftc schema --path",
)

NAMES = "layout-1, report-1 for `check --format json`, or inspect-1 for `inspect --json`."


def schema(
    name: Annotated[
        str, typer.Argument(help="layout-1, report-1 (`check --format json`) or inspect-1 (`inspect --json`).")
    ] = "layout-1",
    path: Annotated[bool, typer.Option("--path", help="Print where the file lies instead of its text.")] = False,
) -> None:
    """Print a JSON Schema of draftc."""
    from draftc import schemas

    try:
        typer.echo(str(schemas.path(name)) if path else schemas.text(name).rstrip())
    except FileNotFoundError:
        raise CommandError(f"no schema is called {name}", f"known: {', '.join(schemas.names())}") from None
