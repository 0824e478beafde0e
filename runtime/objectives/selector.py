"""DFlash2's selector term: the right candidate among the strict top K, where it is one of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.slots import Scored, Slots, needed, widened
from draftc.runtime.objectives.weights import PLAIN


@dataclass(frozen=True, slots=True)
class SelectorCrossEntropy:
    """Σ w·CE over the candidates / Σ w over all slots; a slot whose label is none adds no CE."""

    weigh: Callable[[Slots], Tensor] = PLAIN
    name = "selector"
    needs_teacher = False

    def denominator(self, slots: Slots) -> Tensor:
        """Σ w of all slots, hit or not."""
        return self.weigh(slots).sum()

    def numerator(self, slots: Slots, scored: Scored) -> Tensor:
        """Σ w·CE of the candidate scores, over the slots whose label is a candidate."""
        candidates = needed(scored.candidates, "a candidate selector (family dflash2)")
        scores = widened(needed(scored.candidate_scores, "a candidate selector (family dflash2)"))
        is_label = candidates == slots.labels[..., None]
        chosen = torch.where(is_label, scores.log_softmax(-1), 0).sum(-1)
        return -(self.weigh(slots) * chosen).sum()
