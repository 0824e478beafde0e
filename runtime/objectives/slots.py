"""What every term reads: the facts of the slots, known from data alone, and what the draft said about them."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Slots:
    """M blocks of b slots, with everything about them that no model computes.

    `labels [M, b]` int64 are the tokens to predict, `weights [M, b]` float32 their loss mask (zero where nothing is
    predicted), `first_slot` the first slot that predicts anything. `tokens [M, b+1]` int64 are the tokens from the
    anchor on. `teacher [M, b, H_target]` is the target's final state that predicts each label, None where no term asks.
    `documents` counts the documents that the blocks were drawn from.
    """

    labels: Tensor
    weights: Tensor
    tokens: Tensor
    teacher: Tensor | None
    first_slot: int
    documents: int

    def part(self, start: int, stop: int) -> "Slots":
        """The blocks from `start` to before `stop`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[start:stop] for name, value in values.items() if isinstance(value, Tensor)})

    def with_weights(self, weights: Tensor) -> "Slots":
        """The same slots, weighing `weights [M, b]`."""
        return replace(self, weights=weights)


@dataclass(frozen=True, slots=True)
class Scored:
    """What a draft says about M blocks of b slots.

    `logits [M, b, V]` are final, every correction of the family included. `base [M, b, V]` are those before Domino's
    correction, `confidence [M, b]` DSpark's confidence logits, `candidates [M, b, K]` int64 and `candidate_scores
    [M, b, K]` DFlash2's selector; `teacher [M, b, V]` the target's logits. None where there is no such thing.
    """

    logits: Tensor
    base: Tensor | None = None
    confidence: Tensor | None = None
    candidates: Tensor | None = None
    candidate_scores: Tensor | None = None
    teacher: Tensor | None = None


class ObjectiveError(ValueError):
    """An objective that cannot be evaluated: something it needs is missing, or nothing is supervised."""


def widened(x: Tensor) -> Tensor:
    """`x` in float32, or as wide as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def needed(value: Tensor | None, what: str) -> Tensor:
    """Return `value`; raise `ObjectiveError` when a term needs it and there is none."""
    if value is None:
        raise ObjectiveError(f"a term of this objective needs {what}, which this draft or its data do not have")
    return value
