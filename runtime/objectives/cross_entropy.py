"""DFlash's term: cross-entropy of every step with the token it stands for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from draftc.runtime.objectives.distances import cross_entropy
from draftc.runtime.objectives.steps import Scored, Steps
from draftc.runtime.objectives.weights import PLAIN


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Σ w·CE / Σ w over all steps, w from `weigh`."""

    weigh: Callable[[Steps], Tensor] = PLAIN
    name = "ce"
    needs_teacher = False

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·CE of the final logits."""
        return (self.weigh(steps) * cross_entropy(scored.logits, steps.labels)).sum()
