"""What the commands show on a terminal: tables, progress, and compile errors as diagnostics."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer

from draftc.commands.failure import CommandError, refused_by_system

WIDE = 160  # columns of a table that does not go to a terminal, so that nothing is cut in a file


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on standard error what is being done, while it is being done; silent where that is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `right` hold numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for heading in headings:
        drawn.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDE, highlight=False).print(drawn)


@contextmanager
def errors() -> Iterator[None]:
    """Turn what the compiler refuses into a message in the form of a diagnostic; options that name nothing exit 2."""
    from draftc.compiler.errors import CompileError, InternalError, UnknownNameError
    from draftc.spec.diagnostic import LayoutError

    try:
        yield
    except InternalError:
        raise
    except CompileError as error:
        notes = "".join(f"\n  = note: {note}" for note in error.notes)
        text = f"[{error.code.number} {error.code.name}]: {error.message}{notes}"
        raise CommandError(text, error.help, exit_code=2 if isinstance(error, UnknownNameError) else 1) from None
    except LayoutError as error:
        raise CommandError(str(error), exit_code=1) from None
    except OSError as error:
        raise refused_by_system(error) from None


def echo_lines(lines: Iterable[str]) -> None:
    """Print each line."""
    for line in lines:
        typer.echo(line)
