"""Where a layout comes from: a file, standard input, or the layouts that draftc ships."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from draftc.spec.suggest import did_you_mean
from draftc.spec.system_errors import reason, way_out
from draftc.spec.target import list_targets

SUFFIXES = (".yaml", ".yml", ".json")
STANDARD_INPUT = "<stdin>"
_FIRST = "`draftc init` writes a layout to start from, `draftc list` names the shipped ones"
_MOST_BYTES = (1 << 20) + 1  # one more than a layout may have, so that the reader can say that it is too large

__all__ = ["LayoutSource", "SourceError", "UnknownLayoutError", "list_layouts", "list_targets", "open_source"]


@dataclass(frozen=True, slots=True)
class LayoutSource:
    """The bytes of a layout, how messages call them, and what relative paths in them start from (None: nothing)."""

    file: str
    data: bytes
    folder: Path | None


class SourceError(Exception):
    """A layout cannot be opened; `help` says what to do, and may be empty."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.help = advice


class UnknownLayoutError(SourceError):
    """No shipped layout has that name."""


@cache
def list_layouts() -> tuple[str, ...]:
    """Return the names of the shipped layouts, sorted."""
    folder = files("draftc.spec").joinpath("layouts")
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def open_source(argument: str) -> LayoutSource:
    """Open what a command's argument names.

    An argument that ends in .yaml, .yml or .json, or that holds a path separator, is a file; `-` is standard input;
    anything else is the name of a shipped layout. Raises SourceError when a file cannot be read and UnknownLayoutError
    for a name that draftc does not ship. A folder in the working directory hides no shipped layout.
    """
    if argument == "-":
        return _read_standard_input()
    if argument.endswith(SUFFIXES) or "/" in argument or "\\" in argument:
        return _open_file(argument)
    return _open_shipped(argument)


def _read_standard_input() -> LayoutSource:
    if sys.stdin is None:
        raise SourceError("standard input is closed", "name a file, or send the layout through a pipe")
    return LayoutSource(STANDARD_INPUT, sys.stdin.buffer.read(_MOST_BYTES), Path())


def _open_file(argument: str) -> LayoutSource:
    path = Path(argument)
    try:
        with path.open("rb") as file:
            return LayoutSource(argument, file.read(_MOST_BYTES), path.parent)
    except FileNotFoundError as problem:
        raise SourceError(f"there is no file {argument}", _FIRST) from problem
    except IsADirectoryError as problem:
        raise SourceError(f"{argument} is a folder", _file_in(path)) from problem
    except (OSError, ValueError) as problem:
        raise SourceError(f"cannot read {argument}: {reason(problem)}", way_out(problem)) from problem


def _file_in(folder: Path) -> str:
    """The way out when a folder was named: in that of a bundle lies the layout that it was made from."""
    layout = folder / "layout.yaml"
    return f"did you mean {layout}?" if layout.is_file() else "name a layout file in it"


def _open_shipped(name: str) -> LayoutSource:
    if name not in list_layouts():
        if name and os.path.isdir(name):
            raise SourceError(f"{name} is a folder", _file_in(Path(name)))
        known = did_you_mean(name, list_layouts()) or f"shipped: {', '.join(list_layouts())}"
        raise UnknownLayoutError(
            f"no shipped layout is called {name}", f"{known}; a file ends in .yaml, .yml or .json, or holds a separator"
        )
    file = files("draftc.spec").joinpath("layouts", f"{name}.yaml")
    return LayoutSource(file.name, file.read_bytes(), None)
