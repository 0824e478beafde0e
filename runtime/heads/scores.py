"""What a head says of the next token, for blocks that are trained and for a block that is drafted."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Choose = Callable[[Tensor], Tensor]


class Unary(NamedTuple):
    """What a slot says of its token before any other token is known.

    `logits [.., V_draft]` are the draft's own; `scores [.., V']` those of the tokens that can be chosen, and
    `candidates` the target's ids of these: `[V']` alike for all rows, `[.., V']` row by row, None: column i is token i.
    """

    logits: Tensor
    scores: Tensor
    candidates: Tensor | None

    def at(self, step: int) -> "Unary":
        """Step `step` of `[B, D, ..]`, as `[B, ..]`."""
        own = self.candidates
        if own is not None and own.ndim > 1:
            own = own[:, step]
        return Unary(self.logits[:, step], self.scores[:, step], own)

    def tokens(self, choice: Tensor) -> Tensor:
        """The target's ids of the chosen columns `choice [..]`."""
        if self.candidates is None:
            return choice
        if self.candidates.ndim == 1:
            return self.candidates[choice]
        return self.candidates.gather(-1, choice[..., None]).squeeze(-1)


class HeadRows(NamedTuple):
    """What is left of N blocks a row once the heads have looked at the tokens before each slot.

    `hidden [B, N, T, H_out]` is what the output head reads, `features [B, N, T, r]` what the correction of the logits
    reads (None: there is none), `confidence [B, N, T]` a logit of acceptance (None: no such head). Rows are independent
    of each other from here on, so logits may be made for some of them at a time.
    """

    hidden: Tensor
    features: Tensor | None
    confidence: Tensor | None


class BlockScores(NamedTuple):
    """Scores of every predicted token of N blocks a row, with the tokens before them given.

    `logits [B, N, T, V_draft]` are those of `Unary`; `scores [B, N, T, V']` are corrected by the family's head and
    belong to `candidates`, as in `Unary`; `confidence [B, N, T]` is a logit of acceptance, or None.
    """

    logits: Tensor
    scores: Tensor
    candidates: Tensor | None
    confidence: Tensor | None


class Drafted(NamedTuple):
    """The proposal of a decoding step: `tokens [B, D]`, ids of the target, chosen by `scores [B, D, V']`.

    `candidates` are the ids of the columns of `scores`, as in `Unary`; `confidence [B, D]` is a logit of acceptance,
    or None.
    """

    tokens: Tensor
    scores: Tensor
    candidates: Tensor | None
    confidence: Tensor | None


def greedy(scores: Tensor) -> Tensor:
    """The column of the highest score, `[.., V'] -> [..]`."""
    return scores.argmax(-1)
