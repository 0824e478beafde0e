"""What the compiler refuses, as typed errors that a face can print like any other diagnostic."""

from typing import ClassVar

from draftc.spec.compiling_codes import (
    BACKEND_REFUSES,
    INTERNAL_ERROR,
    SHAPE_MISMATCH,
    UNKNOWN_OPTION,
    UNTRACEABLE_FORWARD,
)
from draftc.spec.diagnostic import Code


class CompileError(Exception):
    """A layout or module that cannot be compiled. `message` says what is wrong, `notes` where, `help` what to do."""

    code: ClassVar[Code]

    def __init__(self, message: str, *, notes: tuple[str, ...] = (), help: str = "") -> None:  # noqa: A002 - rustc's word
        self.message = message
        self.notes = notes
        self.help = help
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}", *(f"note: {note}" for note in self.notes)]
        return "\n".join([*lines, f"help: {self.help}"] if self.help else lines)


class UntraceableError(CompileError):
    """A forward does something that a graph cannot hold."""

    code = UNTRACEABLE_FORWARD


class ShapeError(CompileError):
    """Two shapes of a graph do not fit."""

    code = SHAPE_MISMATCH


class BackendError(CompileError):
    """No backend runs a layer, or the one that was asked for refuses it."""

    code = BACKEND_REFUSES


class UnknownNameError(CompileError):
    """An option names a pass, an optimisation level or a backend that does not exist."""

    code = UNKNOWN_OPTION


class InternalError(CompileError):
    """A fault of draftc itself, not of the layout."""

    code = INTERNAL_ERROR
