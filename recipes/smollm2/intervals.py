"""Confidence intervals of a ratio over prompts, by the percentile bootstrap (Efron and Tibshirani, 1993).

Acceptance length is tokens per pass of the target, so a ratio of sums. Rounds of one prompt are alike and are no
independent draws; prompts are, so prompts are what is drawn again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its interval."""

    value: float
    low: float
    high: float

    def rounded(self, digits: int = 3) -> list[float]:
        """Value, low, high."""
        return [round(number, digits) for number in (self.value, self.low, self.high)]


def draws(count: int, seed: int) -> Tensor:
    """Numbers of `count` prompts, drawn with replacement, DRAWS times: `[DRAWS, count]`."""
    return torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(seed))


def ratio(lengths: Sequence[Sequence[int]], chosen: Tensor) -> Tensor:
    """Tokens per round over the prompts `chosen [.., n]`: `[..]`. `lengths` has those of every round of each prompt."""
    tokens = torch.tensor([sum(line) for line in lengths], dtype=torch.float64)
    rounds = torch.tensor([len(line) for line in lengths], dtype=torch.float64)
    return tokens[chosen].sum(-1) / rounds[chosen].sum(-1)


def bounds(value: float, drawn: Tensor) -> Interval:
    """The interval that holds LEVEL of `drawn`."""
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=drawn.dtype)).tolist()
    return Interval(value, low, high)


def acceptance(lengths: Sequence[Sequence[int]], seed: int = 0) -> Interval:
    """Tokens per round over all prompts."""
    value = float(ratio(lengths, torch.arange(len(lengths))))
    return bounds(value, ratio(lengths, draws(len(lengths), seed)))


def change(lengths: Sequence[Sequence[int]], baseline: Sequence[Sequence[int]], seed: int = 0) -> Interval:
    """By how many percent tokens per round differ from those of `baseline`, on the same prompts drawn together.

    Raises `ValueError` when the two are not of the same prompts.
    """
    if len(lengths) != len(baseline):
        raise ValueError(f"{len(lengths)} prompts cannot be paired with {len(baseline)}")
    everyone, chosen = torch.arange(len(lengths)), draws(len(lengths), seed)
    value, drawn = (100 * (ratio(lengths, part) / ratio(baseline, part) - 1) for part in (everyone, chosen))
    return bounds(float(value), drawn)


def survival(lengths: Sequence[Sequence[int]], drafted: int) -> list[float]:
    """The share of rounds in which the draft's first, first two, ... first `drafted` tokens all stood."""
    rounds = [length for line in lengths for length in line]
    return [sum(length > count for length in rounds) / len(rounds) for count in range(1, drafted + 1)]
