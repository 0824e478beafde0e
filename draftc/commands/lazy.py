"""Commands that are imported when they are asked for: `check` pays for no option of `train`."""

from collections import UserDict
from importlib import import_module
from typing import Any

import typer


class Commands(UserDict[str, Any]):
    """Commands by name, out of functions of `draftc.commands`, each written as `module:function` until it is read.

    Names cost nothing: what looks at keys only, such as a suggestion for a misspelt command, imports nothing.
    """

    def __getitem__(self, name: str) -> Any:
        """Import the function behind `name` and return its command; EXAMPLES of its module end the help.

        Raises KeyError for an unknown name.
        """
        module, _, function = super().__getitem__(name).partition(":")
        found = import_module(f"draftc.commands.{module}")
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog="\n\n".join(["Examples:", *found.EXAMPLES]))(getattr(found, function))
        return typer.main.get_command(alone)
