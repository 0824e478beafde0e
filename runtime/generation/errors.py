"""What generation refuses, as typed errors, and what it warns of."""


class GenerationError(ValueError):
    """A request that cannot be decoded. `message` says what is wrong, `help` what to do."""

    def __init__(self, message: str, help: str = "") -> None:  # noqa: A002 - rustc's word
        self.message = message
        self.help = help
        super().__init__(f"{message}; {help}" if help else message)


class DraftMismatchError(GenerationError):
    """A draft and a target that were not made for each other."""


class UnfilledVocabularyError(GenerationError):
    """A draft with a reduced vocabulary that does not know yet which of the target's tokens it has."""


class StatefulTargetError(GenerationError):
    """A target that cannot take back the tokens that it rejects."""


class PromptError(GenerationError):
    """Prompts or limits that leave nothing to decode."""


class BeyondPositionsWarning(UserWarning):
    """A text may grow past the positions that the target was made for."""
