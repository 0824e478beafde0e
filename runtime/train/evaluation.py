"""Acceptance over a whole evaluation set, every example exactly once whatever the ranks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftc.runtime.objectives.acceptance import COUNTS
from draftc.runtime.train.feed import Collator, Draws, Fed
from draftc.runtime.train.taps import Features


@torch.no_grad()
def evaluation_counts(
    learner: nn.Module,
    draws: Draws,
    collator: Collator,
    features: Callable[[Fed], Features],
    batch_size: int,
    rank: tuple[int, int],
    device: torch.device,
) -> tuple[Tensor, bool]:
    """`acceptance_counts` of the share of `rank` (number, of how many) in `draws`, and whether targets were known.

    Every rank runs as many batches, since a sharded learner needs all of them; those beyond a rank's share count
    nothing.
    """
    number, ranks = rank
    total = torch.zeros(len(COUNTS), dtype=torch.float64, device=device)
    knows_target = True
    for start in range(0, len(draws), batch_size * ranks):
        first = start + number * batch_size
        own = range(first, min(first + batch_size, len(draws)))
        fed = collator([draws[index] for index in own or [0]])["fed"].to(device)
        found = features(fed)
        _, counts = learner(fed.batch, found)
        knows_target = knows_target and found.final is not None
        total += counts * bool(own)
    return total, knows_target
