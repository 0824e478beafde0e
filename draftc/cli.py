"""The command line. Exit codes: 0 clean, 1 findings, 2 wrong usage or a fault of draftc itself."""

import os
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from draftc.commands.failure import CommandError, refused_by_system
from draftc.commands.lazy import Commands

INTERNAL = """error[{code}]: {what}
  = note: this is a fault of draftc, not of your layout
  = help: report it with the layout and the output of DRAFTC_DEBUG=1 (draftc {version})
"""

COMMANDS = {
    "check": "check:check",
    "compile": "compile:compile_layout",
    "inspect": "inspect:inspect",
    "verify": "verify:verify",
    "generate": "generate:generate",
    "train": "train:train",
    "capture": "capture:capture",
    "explain": "explain:explain",
    "schema": "schema:schema",
    "init": "init:init",
    "list": "list:list_shipped",
}


class LazyGroup(TyperGroup):
    """The commands of the table above, each imported when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(COMMANDS)


app = typer.Typer(
    name="draftc",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A compiler for draft models of speculative decoding.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def without_place(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
    """A warning of ours in the form of a diagnostic: the line of code that gave it tells a user nothing."""
    if category.__module__.partition(".")[0] == "draftc":
        return f"warning: {message}\n"
    return WITH_PLACE(message, category, *place, **more)


WITH_PLACE = warnings.formatwarning


def main() -> None:
    """Run the command line and exit with its code."""
    warnings.formatwarning = without_place
    try:
        app()
    except CommandError as failure:
        typer.echo(str(failure), err=True)
        sys.exit(failure.exit_code)
    except OSError as error:
        refusal = refused_by_system(error)
        typer.echo(str(refusal), err=True)
        sys.exit(refusal.exit_code)
    except Exception as fault:  # the one place that may: a fault of ours is reported as such, with a way to tell us
        if os.environ.get("DRAFTC_DEBUG"):
            import traceback

            traceback.print_exc()
        typer.echo(fault_report(fault), err=True, nl=False)
        sys.exit(2)


def fault_report(fault: Exception) -> str:
    """Say what is wrong with draftc, in the form of a diagnostic."""
    from draftc import __version__
    from draftc.compiler.errors import InternalError
    from draftc.spec.compiling_codes import INTERNAL_ERROR

    what = fault.message if isinstance(fault, InternalError) else f"{type(fault).__name__}: {fault}"
    return INTERNAL.format(code=INTERNAL_ERROR, what=what, version=__version__)


if __name__ == "__main__":
    main()
