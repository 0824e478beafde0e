"""DFlash's term: cross-entropy of every slot with the token it stands for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from draftc.runtime.objectives.distances import cross_entropy
from draftc.runtime.objectives.slots import Scored, Slots
from draftc.runtime.objectives.weights import PLAIN


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Σ w·CE / Σ w over all slots, w from `weigh`."""

    weigh: Callable[[Slots], Tensor] = PLAIN
    name = "ce"
    needs_teacher = False

    def denominator(self, slots: Slots) -> Tensor:
        """Σ w."""
        return self.weigh(slots).sum()

    def numerator(self, slots: Slots, scored: Scored) -> Tensor:
        """Σ w·CE of the final logits."""
        return (self.weigh(slots) * cross_entropy(scored.logits, slots.labels)).sum()
