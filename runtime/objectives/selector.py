"""DFlash2's selector term: the right candidate among the strict top K, where it is one of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.steps import Scored, Steps, needed, widened
from draftc.runtime.objectives.weights import PLAIN


@dataclass(frozen=True, slots=True)
class SelectorCrossEntropy:
    """Σ w·CE over the candidates / Σ w over all steps; a step whose label is none adds no CE."""

    weigh: Callable[[Steps], Tensor] = PLAIN
    name = "selector"
    needs_teacher = False

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w of all steps, hit or not."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·CE of the candidate scores, over the steps whose label is a candidate."""
        candidates = needed(scored.candidates, "a candidate selector (family dflash2)")
        scores = widened(needed(scored.scores, "a candidate selector (family dflash2)"))
        is_label = candidates == steps.labels[..., None]
        chosen = torch.where(is_label, scores.log_softmax(-1), 0).sum(-1)
        return -(self.weigh(steps) * chosen).sum()
