"""How a command ends early."""


class CommandError(Exception):
    """What went wrong in words for the person at the terminal, with the exit code of the run."""

    def __init__(self, message: str, help: str = "", exit_code: int = 2) -> None:  # noqa: A002 - the word of diagnostics
        self.exit_code = exit_code
        lead = "error" if message.startswith("[") else "error: "
        super().__init__(lead + message + (f"\n  = help: {help}" if help else ""))


def refused_by_system(error: OSError, doing: str = "") -> CommandError:
    """Return how a command ends when the system refuses what it was `doing`: a file, with the way out."""
    from draftc.spec.system_errors import reason, way_out

    place = doing or str(error.filename or "")
    return CommandError(f"{place}: {reason(error)}" if place else reason(error), way_out(error))
