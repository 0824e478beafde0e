"""What can be wrong with the material of a training run."""

from dataclasses import dataclass
from pathlib import Path


class TrainingError(ValueError):
    """A run that cannot start or go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an example comes from: its file, and its row or record in it, counted from 1."""

    file: Path
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


class TrainingDataError(TrainingError):
    """An example that nothing can be learned from; the message starts with its place."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


def first_line(error: Exception) -> str:
    """What `error` says, without what other libraries add over many lines; its kind when it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
