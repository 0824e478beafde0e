"""`draftc explain`: what a code means, why it hurts, a bad example and a good one."""

import sys
from typing import Annotated

import typer

from draftc.commands.failure import CommandError
from draftc.commands.reading import wants_color

EXAMPLES = (
    "draftc explain DC203",
    "draftc explain kv-heads-not-divisor",
    "draftc explain --list",
)


def explain(
    code: Annotated[str, typer.Argument(help="A code such as DC203, 203 or kv-heads-not-divisor.")] = "",
    list_codes: Annotated[bool, typer.Option("--list", help="List every code with its name and severity.")] = False,
) -> None:
    """Explain a diagnostic: what it is, why it hurts, a bad example and a good one."""
    from draftc.spec.explain import UnknownCodeError, catalogue, page

    if list_codes or not code:
        for known in catalogue():
            typer.echo(f"{known.number}  {known.severity:<8} {known.name}")
        return
    try:
        found = page(code)
    except UnknownCodeError as error:
        raise CommandError(str(error), "`draftc explain --list` names them all") from None
    if wants_color(sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        Console(width=100).print(Markdown(found.text))
    else:
        typer.echo(found.text.rstrip())
