"""How far a draft is accepted, counted along sequences that are given: teacher-forced, every block for itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.distances import acceptance
from draftc.runtime.objectives.steps import Scored, Steps

COUNTS = ("matched", "supervised", "accepted", "blocks", "expected")


@torch.no_grad()
def acceptance_counts(steps: Steps, scored: Scored) -> Tensor:
    """Sums over the blocks, `[5]` float64, in the order of `COUNTS`.

    Tokens that the draft would choose and that are right, out of the supervised ones; the tokens before the first wrong
    one of each block, and the number of blocks that supervise anything. `expected` is the same run under rejection
    sampling, Σ_k Π_{i<=k} Σ min(p, q), and zero where the target's distribution is not known. The tokens before a step
    are given, so for the run that is accepted this is what the draft would have said on its own.
    """
    right = (scored.choice == steps.labels) & (steps.weights > 0)
    rate = torch.zeros_like(steps.weights)
    if scored.teacher is not None:
        rate = acceptance(scored.logits, scored.teacher) * (steps.weights > 0)
    found = (
        right.sum(),
        steps.supervised.sum(),
        right.long().cumprod(-1).sum(),
        steps.supervised.any(-1).sum(),
        rate.cumprod(-1).sum(),
    )
    return torch.stack([value.double() for value in found])


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """Means of a whole evaluation: accuracy of single tokens, and tokens per verification, the target's own included.

    `expected_length` is that of rejection sampling; None where the target's distribution was not known.
    """

    accuracy: float
    acceptance_length: float
    expected_length: float | None
    blocks: int


def acceptance_report(counts: Tensor, knows_target: bool) -> AcceptanceReport:
    """The means that the sums `counts [5]` of `acceptance_counts` give."""
    matched, supervised, accepted, blocks, expected = counts.tolist()
    return AcceptanceReport(
        accuracy=matched / max(supervised, 1),
        acceptance_length=1 + accepted / max(blocks, 1),
        expected_length=1 + expected / max(blocks, 1) if knows_target else None,
        blocks=int(blocks),
    )
