"""What every term reads: the facts of the steps, known from data alone, and what the draft said about them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Steps:
    """M blocks of T predicted tokens, with everything about them that no trained weight moves.

    `labels [M, T]` int64 are the predicted tokens as columns of the draft's logits. `weights [M, T]` float32 is the
    loss mask: zero where nothing is to be predicted, or nothing that the draft's vocabulary has (its label is then 0);
    `supervised [M, T]` bool ignores the vocabulary. `teacher [M, T, H_target]` is the final state of the target that
    predicts each token, None where no term asks. `documents` counts those that the blocks were drawn from.
    """

    labels: Tensor
    weights: Tensor
    supervised: Tensor
    teacher: Tensor | None
    documents: int

    def part(self, start: int, stop: int) -> "Steps":
        """The blocks from `start` to before `stop`."""
        return Steps(
            self.labels[start:stop],
            self.weights[start:stop],
            self.supervised[start:stop],
            None if self.teacher is None else self.teacher[start:stop],
            self.documents,
        )

    def with_weights(self, weights: Tensor) -> "Steps":
        """The same steps, weighing `weights [M, T]`."""
        return replace(self, weights=weights)


@dataclass(frozen=True, slots=True)
class Scored:
    """What a draft says about M blocks of T predicted tokens.

    `logits [M, T, V]` are final, every correction of the family over the whole vocabulary included, `base [M, T, V]`
    those before any. `scores [M, T, K]` are the selector's for `candidates [M, T, K]` int64, columns of the logits;
    `confidence [M, T]` a logit of acceptance; `teacher [M, T, V]` the target's logits. None: there is no such thing.
    """

    logits: Tensor
    base: Tensor
    scores: Tensor | None = None
    candidates: Tensor | None = None
    confidence: Tensor | None = None
    teacher: Tensor | None = None

    @property
    def choice(self) -> Tensor:
        """The column of the logits that the draft would choose, `[M, T]`."""
        if self.scores is None or self.candidates is None:
            return self.logits.argmax(-1)
        return self.candidates.gather(-1, self.scores.argmax(-1, keepdim=True)).squeeze(-1)


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
