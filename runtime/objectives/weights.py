"""How much each step counts: the loss mask, faded along the block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.steps import ObjectiveError, Steps


@dataclass(frozen=True, slots=True)
class Fading:
    """The loss mask times exp(-i/γ) at step i; without `gamma` the mask alone."""

    gamma: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma <= 0:
            raise ObjectiveError(f"loss decay gamma {self.gamma} must be positive")

    def __call__(self, steps: Steps) -> Tensor:
        """The weights `[M, T]`."""
        if self.gamma is None:
            return steps.weights
        places = torch.arange(steps.weights.shape[-1], dtype=steps.weights.dtype, device=steps.weights.device)
        return steps.weights * torch.exp(-places / self.gamma)


@dataclass(frozen=True, slots=True)
class PrefixFading:
    """As `Fading`, of one for every step up to the first whose mask is not above 0.5, and zero from there on."""

    gamma: float | None = None

    def __call__(self, steps: Steps) -> Tensor:
        """The weights `[M, T]`."""
        return Fading(self.gamma)(steps.with_weights(supervised_prefix(steps)))


def supervised_prefix(steps: Steps) -> Tensor:
    """One for every step that predicts a supervised token behind supervised tokens only, `[M, T]`."""
    return (steps.weights > 0.5).to(steps.weights.dtype).cumprod(-1)


PLAIN = Fading()
PREFIX = PrefixFading()
