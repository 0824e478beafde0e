"""How far a draft is accepted, counted along sequences that are given: teacher-forced, every block for itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.objectives.distances import acceptance
from draftc.runtime.objectives.steps import Scored, Steps

COUNTS = ("matched", "supervised", "accepted", "blocks", "expected")
Count = Callable[[Steps, Scored], Tensor]


@torch.no_grad()
def acceptance_counts(steps: Steps, scored: Scored, drafted: int | None = None) -> Tensor:
    """Sums over the blocks, `[5 + 2·D]` float64: those of `COUNTS`, then `runs [D]` and `reached [D]`.

    Tokens that the draft would choose and that are right, out of the supervised ones. Of the D = `drafted` steps that
    decoding proposes (None: all T): the tokens before the first wrong one of each block, and the number of blocks that
    supervise anything. `expected` is the same run under rejection sampling, Σ_k Π_{i<=k} Σ min(p, q), and zero where
    the target's distribution is not known. `runs` counts the blocks that are right up to and with each step, `reached`
    those that supervise every token up to it. The tokens before a step are given, so for the run that is accepted this
    is what the family's drafting rule says.
    """
    right = (scored.choice == steps.labels) & (steps.weights > 0)
    supervised, runs = steps.supervised[:, :drafted], right[:, :drafted].long().cumprod(-1)
    rate = torch.zeros_like(steps.weights)
    if scored.teacher is not None:
        rate = acceptance(scored.logits, scored.teacher) * (steps.weights > 0)
    found = (
        right.sum(),
        steps.supervised.sum(),
        runs.sum(),
        supervised.any(-1).sum(),
        rate[:, :drafted].cumprod(-1).sum(),
    )
    sums = torch.stack([value.double() for value in found])
    return torch.cat([sums, runs.sum(0).double(), supervised.long().cumprod(-1).sum(0).double()])


def no_counts(steps: Steps, scored: Scored) -> Tensor:  # noqa: ARG001 - one signature for all that counts
    """Count nothing, `[0]` float64: while training nobody reads it."""
    return steps.weights.new_zeros(0, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """Means of a whole evaluation: accuracy of single tokens, and tokens per verification, the target's own included.

    `expected_length` is that of rejection sampling; None where the target's distribution was not known. `survival`
    is, for each drafted token, the share of blocks that are right up to and with it, of those that supervise so many.
    """

    accuracy: float
    acceptance_length: float
    expected_length: float | None
    blocks: int
    survival: tuple[float, ...]


def acceptance_report(counts: Tensor, knows_target: bool) -> AcceptanceReport:
    """The means that the sums `counts [5 + 2·D]` of `acceptance_counts` give."""
    matched, supervised, accepted, blocks, expected = counts[: len(COUNTS)].tolist()
    runs, reached = counts[len(COUNTS) :].view(2, -1)
    return AcceptanceReport(
        accuracy=matched / max(supervised, 1),
        acceptance_length=1 + accepted / max(blocks, 1),
        expected_length=1 + expected / max(blocks, 1) if knows_target else None,
        blocks=int(blocks),
        survival=tuple((runs / reached.clamp(min=1)).tolist()),
    )
