"""What a term is, how its coefficient moves, and how terms make one loss that no split of the batch changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps

Coefficient = Callable[[float], float]


class Term(Protocol):
    """A loss that adds up over blocks: a numerator that the draft moves, over a denominator that data alone decides.

    The denominator is summed over all ranks and accumulation steps before any gradient is taken, so that neither
    changes the loss. `needs_teacher` says whether the target's distribution takes part.
    """

    @property
    def name(self) -> str:
        """The word under which logs show the term."""

    @property
    def needs_teacher(self) -> bool:
        """Whether `Steps.teacher` must be there."""

    def denominator(self, steps: Steps) -> Tensor:
        """What the numerators of all blocks are divided by: a scalar that adds up over blocks."""

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """The loss of these blocks, summed: a scalar."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A coefficient that stays."""

    value: float = 1.0

    def __call__(self, progress: float) -> float:  # noqa: ARG002 - one signature for every coefficient
        """The coefficient at `progress`, the share of all steps that is done."""
        return self.value


@dataclass(frozen=True, slots=True)
class Ramp:
    """A coefficient that goes in a straight line from `start` to `stop` while `progress` goes from `begin` to `end`."""

    start: float
    stop: float
    begin: float = 0.0
    end: float = 1.0

    def __call__(self, progress: float) -> float:
        """The coefficient at `progress`, the share of all steps that is done."""
        if progress >= self.end:
            return self.stop
        if progress <= self.begin:
            return self.start
        return self.start + (self.stop - self.start) * (progress - self.begin) / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A term and its coefficient."""

    term: Term
    coefficient: Coefficient


@dataclass(frozen=True, slots=True)
class Objective:
    """A weighted sum of terms: Σ_i c_i · numerator_i / denominator_i."""

    parts: tuple[Weighted, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms, in order."""
        return tuple(part.term for part in self.parts)

    @property
    def needs_teacher(self) -> bool:
        """Whether any term compares with the target's distribution."""
        return any(term.needs_teacher for term in self.terms)

    def denominators(self, steps: Steps) -> Tensor:
        """The denominators of these blocks, `[terms]`, summed in float64 so that no order of summation shows."""
        wide = steps.with_weights(steps.weights.double())
        return torch.stack([term.denominator(wide) for term in self.terms])

    def numerators(self, steps: Steps, scored: Scored) -> Tensor:
        """The numerators of these blocks, `[terms]`."""
        return torch.stack([term.numerator(steps, scored) for term in self.terms])

    def combine(self, numerators: Tensor, denominators: Tensor, progress: float) -> Tensor:
        """The loss of `numerators [terms]` over `denominators [terms]`, those of the whole step.

        Raises `ObjectiveError` when a denominator is not positive: then the step supervises nothing.
        """
        empty = [term.name for term, total in zip(self.terms, denominators.tolist(), strict=True) if not total > 0]
        if empty:
            raise ObjectiveError(f"nothing in this step is supervised: no weight for {', '.join(empty)}")
        coefficients = [part.coefficient(progress) for part in self.parts]
        scale = torch.tensor(coefficients, dtype=torch.float64, device=denominators.device) / denominators
        return (numerators * scale.to(numerators.dtype)).sum()


def objective_of(*parts: tuple[Term, Coefficient | float]) -> Objective:
    """The objective of terms with coefficients, which may be plain numbers.

    Raises `ObjectiveError` for a negative number and for no term at all.
    """
    if not parts:
        raise ObjectiveError("an objective needs at least one term")
    for term, coefficient in parts:
        if not callable(coefficient) and coefficient < 0:
            raise ObjectiveError(f"the coefficient of {term.name}, {coefficient}, must not be negative")
    return Objective(tuple(Weighted(term, c if callable(c) else Constant(float(c))) for term, c in parts))
