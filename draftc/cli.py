"""The command line. Exit codes: 0 clean, 1 findings, 2 wrong usage or a fault of draftc itself."""

import os
import sys
import traceback

import typer

from draftc.commands.capture import capture
from draftc.commands.check import check
from draftc.commands.compile import compile_layout
from draftc.commands.explain import explain
from draftc.commands.failure import CommandError
from draftc.commands.generate import generate
from draftc.commands.init import init
from draftc.commands.inspect import inspect
from draftc.commands.list import list_shipped
from draftc.commands.schema import schema
from draftc.commands.train import train
from draftc.commands.verify import verify

INTERNAL = """error[DC900 internal-error]: {what}
  = note: this is a fault of draftc, not of your layout
  = help: report it with the layout and the output of DRAFTC_DEBUG=1 (draftc {version})
"""

app = typer.Typer(
    name="draftc",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A compiler for draft models of speculative decoding.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in (
    ("check", check),
    ("compile", compile_layout),
    ("inspect", inspect),
    ("verify", verify),
    ("generate", generate),
    ("train", train),
    ("capture", capture),
    ("explain", explain),
    ("schema", schema),
    ("init", init),
    ("list", list_shipped),
):
    app.command(name)(command)


def version(show: bool) -> None:
    """Print the version and stop."""
    if show:
        from draftc import __version__

        typer.echo(f"draftc {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Show the version and exit."),
) -> None:
    """A compiler for draft models of speculative decoding."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app()
    except CommandError as failure:
        typer.echo(str(failure), err=True)
        sys.exit(failure.exit_code)
    except Exception as fault:  # the one place that may: a fault of ours is reported as such, with a way to tell us
        if os.environ.get("DRAFTC_DEBUG"):
            traceback.print_exc()
        from draftc import __version__

        typer.echo(INTERNAL.format(what=f"{type(fault).__name__}: {fault}", version=__version__), err=True, nl=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
