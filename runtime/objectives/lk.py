"""LK losses: the acceptance rate itself as the objective (arXiv 2602.23881); for every family.

With the target's distribution p, a draw of the draft q is accepted at the rate a = Σ min(p, q). Where only the token of
the data is known, p is that token alone, a = q(label), and KL(p ‖ q) is cross-entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.distances import acceptance, cross_entropy, divergence
from draftc.runtime.objectives.dspark import TEACHER
from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps, needed
from draftc.runtime.objectives.weights import PLAIN

LK_FORMS = ("alpha", "tv", "lambda")
LEAST_ACCEPTANCE = 1e-6  # float32 rounds Σ min(p, q) to 0 for distant distributions; the logarithm stays finite


@dataclass(frozen=True, slots=True)
class Overlap:
    """How often a step is accepted, `rate [M, T]`, and the KL divergence `kl [M, T]` that belongs to it."""

    rate: Tensor
    kl: Tensor


def overlap_with_label(steps: Steps, scored: Scored) -> Overlap:
    """The overlap with the token of the data."""
    loss = cross_entropy(scored.logits, steps.labels)
    return Overlap(torch.exp(-loss), loss)


def overlap_with_target(steps: Steps, scored: Scored) -> Overlap:  # noqa: ARG001 - one signature for both
    """The overlap with the target's distribution. Raises `ObjectiveError` when it is not there."""
    teacher = needed(scored.teacher, TEACHER)
    return Overlap(acceptance(scored.logits, teacher), divergence(scored.logits, teacher))


@dataclass(frozen=True, slots=True)
class AcceptanceLoss:
    """Σ w·loss / Σ w, by `form`: alpha is -log a, tv is 1 - a, lambda mixes KL and 1 - a.

    The share of KL is `kl_scale`·exp(-`kl_decay`·a), a of the step itself and detached: a mean over a batch would
    make the loss depend on how the batch is split. Raises `ObjectiveError` for another form, a scale outside
    [0, 1], and a negative decay.
    """

    form: str = "lambda"
    needs_teacher: bool = True
    kl_scale: float = 1.0
    kl_decay: float = 3.0
    weigh: Callable[[Steps], Tensor] = PLAIN

    def __post_init__(self) -> None:
        if self.form not in LK_FORMS or not 0 <= self.kl_scale <= 1 or self.kl_decay < 0:
            raise ObjectiveError(
                f"an LK loss is one of {', '.join(LK_FORMS)} with kl_scale in [0, 1] and kl_decay >= 0, not {self}"
            )

    @property
    def name(self) -> str:
        """The word under which logs show the term."""
        return f"lk_{self.form}"

    def denominator(self, steps: Steps) -> Tensor:
        """Σ w."""
        return self.weigh(steps).sum()

    def numerator(self, steps: Steps, scored: Scored) -> Tensor:
        """Σ w·loss of the final logits."""
        found = (overlap_with_target if self.needs_teacher else overlap_with_label)(steps, scored)
        return (self.weigh(steps) * self.loss(found)).sum()

    def loss(self, found: Overlap) -> Tensor:
        """The loss of every step, `[M, T]`."""
        if self.form == "tv":
            return 1 - found.rate
        if self.form == "alpha":
            return -found.rate.clamp(min=LEAST_ACCEPTANCE).log() if self.needs_teacher else found.kl
        share = self.kl_scale * torch.exp(-self.kl_decay * found.rate.detach())
        return share * found.kl + (1 - share) * (1 - found.rate)
