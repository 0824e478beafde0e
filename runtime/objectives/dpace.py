"""D-PACE: slots weigh what the draft's own confidence says that acceptance would gain there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.distances import cross_entropy
from draftc.runtime.objectives.slots import ObjectiveError, Scored, Slots


def reach(confidence: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG001 - one signature for every credit
    """P_k = Π_{i<=k} s_i, `[M, b]`: how likely the block is accepted up to slot k."""
    return confidence.cumprod(-1)


def reach_beyond(confidence: Tensor, valid: Tensor) -> Tensor:
    """Σ_{i>=k} P_i m_i, `[M, b]`: what is accepted from slot k on."""
    gained = confidence.cumprod(-1) * valid
    return gained.flip(-1).cumsum(-1).flip(-1)


def continuation(confidence: Tensor, valid: Tensor) -> Tensor:
    """Σ_{i>=k} P_i m_i / P_k, `[M, b]`: what follows slot k once it is reached."""
    return reach_beyond(confidence, valid) / confidence.cumprod(-1)


CREDITS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dpace": reach_beyond,
    "dpace-cumulative-confidence-only": reach,
    "dpace-continuation-value-only": continuation,
}


@dataclass(frozen=True, slots=True)
class Dpace:
    """Σ m·credit·CE over the number of documents, with s = (1 - α)·q(label) + α at valid slots and 1 elsewhere.

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

    def denominator(self, slots: Slots) -> Tensor:
        """The number of documents."""
        return slots.weights.new_tensor(slots.documents)

    def numerator(self, slots: Slots, scored: Scored) -> Tensor:
        """Σ m·credit·CE of the final logits."""
        loss = cross_entropy(scored.logits, slots.labels)
        valid = slots.weights > 0
        confidence = torch.where(valid, (1 - self.alpha) * torch.exp(-loss.detach()) + self.alpha, 1)
        return (slots.weights * CREDITS[self.credit](confidence, valid.to(loss.dtype)) * loss).sum()
