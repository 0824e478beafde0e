"""DSpark's terms beside cross-entropy: distance from the target's distribution, and the confidence head."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.objectives.cross_entropy import CrossEntropy
from draftc.runtime.objectives.distances import total_difference
from draftc.runtime.objectives.steps import Scored, Steps, needed, widened
from draftc.runtime.objectives.term import Objective, Term, objective_of
from draftc.runtime.objectives.weights import PREFIX, PrefixFading

TEACHER = "the target's distribution (last hidden states of the target)"


@dataclass(frozen=True, slots=True)
class TeacherDistance:
    """Σ w·Σ_v |q - p| / Σ w."""

    weigh: Callable[[Steps], Tensor] = PREFIX
    name = "l1"
    needs_teacher = True

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·L1 of the final logits."""
        return (self.weigh(steps) * total_difference(scored.logits, needed(scored.teacher, TEACHER))).sum()


@dataclass(frozen=True, slots=True)
class ConfidenceLoss:
    """Σ w·BCE(confidence, â) / Σ w; â = 1 - L1/2 is the rate at which the target accepts the draft, detached."""

    weigh: Callable[[Steps], Tensor] = PREFIX
    name = "confidence"
    needs_teacher = True

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·BCE of the confidence logits."""
        confidence = widened(needed(scored.confidence, "a confidence head (family dspark)"))
        with torch.no_grad():
            distance = total_difference(scored.logits, needed(scored.teacher, TEACHER))
            accepted = (1 - distance / 2).clamp(0, 1).to(confidence.dtype)
        return (self.weigh(steps) * F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none")).sum()


def dspark_objective(
    gamma: float | None, has_confidence: bool, ce: float = 0.1, l1: float = 0.9, confidence: float = 1.0
) -> Objective:
    """`ce`·CE + `l1`·L1 + `confidence`·BCE over supervised prefixes; terms of coefficient 0 are left out.

    Raises `ObjectiveError` for a negative coefficient, or when nothing is left.
    """
    weigh = PrefixFading(gamma)
    parts: list[tuple[Term, float]] = [(CrossEntropy(weigh), ce), (TeacherDistance(weigh), l1)]
    if has_confidence:
        parts.append((ConfidenceLoss(weigh), confidence))
    return objective_of(*(part for part in parts if part[1] != 0))
