"""What generation returns: rounds while it runs, the whole at its end."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of the target: the new tokens of every row that was running, by number of the row.

    `acceptance_lengths` holds for the same rows how many tokens the target confirmed, its own included, before anything
    behind a stop token or the limit was cut off. It is empty for the pass that reads the prompts.
    """

    tokens: Mapping[int, tuple[int, ...]]
    acceptance_lengths: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The tokens of a run, and how it went.

    `sequences [B, P + T]` int64 holds prompts, padded on the left, and new tokens, padded on the right.
    `new_tokens` are these without padding. `acceptance_lengths` has for every row the length of every round, as in
    `Round`. `rounds` counts the passes of the target after the one over the prompts; `seconds` is all of the time.
    """

    sequences: Tensor
    new_tokens: tuple[tuple[int, ...], ...]
    acceptance_lengths: tuple[tuple[int, ...], ...]
    rounds: int
    seconds: float

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round confirmed on average over all rows; 1.0 where there was none."""
        lengths = [length for row in self.acceptance_lengths for length in row]
        return sum(lengths) / len(lengths) if lengths else 1.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows per second, prompts included in the time."""
        return sum(map(len, self.new_tokens)) / self.seconds
