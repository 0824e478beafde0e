"""How much each slot counts: the loss mask, faded along the block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.slots import ObjectiveError, Slots


@dataclass(frozen=True, slots=True)
class Fading:
    """The loss mask times exp(-i/γ), i counted from the first slot that predicts; without `gamma` the mask alone."""

    gamma: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma <= 0:
            raise ObjectiveError(f"loss decay gamma {self.gamma} must be positive")

    def __call__(self, slots: Slots) -> Tensor:
        """The weights `[M, b]`."""
        if self.gamma is None:
            return slots.weights
        steps = torch.arange(slots.weights.shape[-1], device=slots.weights.device) - slots.first_slot
        return slots.weights * torch.exp(-steps.clamp(min=0) / self.gamma)


@dataclass(frozen=True, slots=True)
class PrefixFading:
    """As `Fading`, of one for every slot up to the first whose mask is not above 0.5, and zero from there on."""

    gamma: float | None = None

    def __call__(self, slots: Slots) -> Tensor:
        """The weights `[M, b]`."""
        return Fading(self.gamma)(slots.with_weights(supervised_prefix(slots)))


def supervised_prefix(slots: Slots) -> Tensor:
    """One for every slot that predicts a supervised token behind supervised tokens only, `[M, b]`."""
    counts = (slots.weights > 0.5).to(slots.weights.dtype)
    return torch.cat([counts[:, : slots.first_slot], counts[:, slots.first_slot :].cumprod(-1)], dim=-1)


PLAIN = Fading()
PREFIX = PrefixFading()
