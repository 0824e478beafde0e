"""What a pass is."""

from typing import Protocol

from draftc.compiler.program import PassReport, Program


class Pass(Protocol):
    """One step over a whole program. The docstring of its class states its algebra, what it requires and ensures.

    `level` is the lowest optimisation level at which it runs, `requires` names the passes that must have run before.
    """

    @property
    def name(self) -> str:
        """The word by which reports and `--disable` call it."""

    @property
    def level(self) -> int:
        """The lowest optimisation level at which it runs."""

    @property
    def requires(self) -> tuple[str, ...]:
        """Passes that must have run before."""

    def run(self, program: Program) -> PassReport:
        """Do it and say what was done; numbers, times and counts are the driver's."""
