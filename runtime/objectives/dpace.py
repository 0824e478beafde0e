"""D-PACE: steps weigh what the draft's own confidence says that acceptance would gain there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.distances import cross_entropy
from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps


def reach(confidence: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG001 - one signature for every credit
    """P_k = Π_{i<=k} s_i, `[M, T]`: how likely the block is accepted up to step k."""
    return confidence.cumprod(-1)


def reach_beyond(confidence: Tensor, valid: Tensor) -> Tensor:
    """Σ_{i>=k} P_i m_i, `[M, T]`: what is accepted from step k on."""
    gained = confidence.cumprod(-1) * valid
    return gained.flip(-1).cumsum(-1).flip(-1)


def continuation(confidence: Tensor, valid: Tensor) -> Tensor:
    """Σ_{i>=k} P_i m_i / P_k, `[M, T]`: what follows step k once it is reached."""
    return reach_beyond(confidence, valid) / confidence.cumprod(-1)


CREDITS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dpace": reach_beyond,
    "dpace-cumulative-confidence-only": reach,
    "dpace-continuation-value-only": continuation,
}


@dataclass(frozen=True, slots=True)
class Dpace:
    """Σ m·credit·CE over the number of documents, with s = (1 - α)·q(label) + α at valid steps and 1 elsewhere.

    q is detached. `credit` names one of `CREDITS`. Raises `ObjectiveError` for another, and for α outside [0, 1].
    """

    credit: str = "dpace"
    alpha: float = 0.5
    needs_teacher = False

    def __post_init__(self) -> None:
        if self.credit not in CREDITS or not 0 <= self.alpha <= 1:
            raise ObjectiveError(f"D-PACE is one of {', '.join(CREDITS)} with alpha in [0, 1], not {self}")

    @property
    def name(self) -> str:
        """The word under which logs show the term."""
        return self.credit

    def denominator(self, steps: Steps) -> Tensor:
        """The number of documents."""
        return steps.weights.new_tensor(steps.documents)

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ m·credit·CE of the final logits."""
        loss = cross_entropy(scored.logits, steps.labels)
        valid = steps.weights > 0
        confidence = torch.where(valid, (1 - self.alpha) * torch.exp(-loss.detach()) + self.alpha, 1)
        return (steps.weights * CREDITS[self.credit](confidence, valid.to(loss.dtype)) * loss).sum()
