"""Domino's base term: cross-entropy of the logits before the correction, and how the two share the loss."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from draftc.runtime.objectives.cross_entropy import CrossEntropy
from draftc.runtime.objectives.distances import cross_entropy
from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps
from draftc.runtime.objectives.term import Objective, Ramp, Term, objective_of
from draftc.runtime.objectives.weights import PLAIN, Fading


@dataclass(frozen=True, slots=True)
class BaseCrossEntropy:
    """Σ w·CE / Σ w of the logits before Domino's correction."""

    weigh: Callable[[Steps], Tensor] = PLAIN
    name = "base_ce"
    needs_teacher = False

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·CE of the base logits."""
        return (self.weigh(steps) * cross_entropy(scored.base, steps.labels)).sum()


def domino_objective(
    gamma: float | None, start: float = 1.0, decay_ratio: float = 0.5, final: Term | None = None
) -> Objective:
    """(1 - λ)·final + λ·base; λ falls in a straight line from `start` to 0 in the first `decay_ratio` of the steps.

    `final` is the term of the corrected logits, cross-entropy unless given. Raises `ObjectiveError` unless `start` and
    `decay_ratio` lie in [0, 1].
    """
    if not (0 <= start <= 1 and 0 <= decay_ratio <= 1):
        raise ObjectiveError(f"lambda starts at {start} and falls in {decay_ratio} of the steps; both lie in [0, 1]")
    weigh = Fading(gamma)
    rising, falling = Ramp(1 - start, 1.0, 0.0, decay_ratio), Ramp(start, 0.0, 0.0, decay_ratio)
    return objective_of((final or CrossEntropy(weigh), rising), (BaseCrossEntropy(weigh), falling))
