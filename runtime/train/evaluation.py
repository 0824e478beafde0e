"""Loss and acceptance over a whole evaluation set, every example exactly once whatever the ranks."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from draftc.runtime.train.feed import Collator, Draws, Fed
from draftc.runtime.train.learner import DraftLearner
from draftc.runtime.train.taps import Features


class Evaluated(NamedTuple):
    """Sums over examples, float64: numerators and denominators of the terms, `[terms]`, and `acceptance_counts`."""

    numerators: Tensor
    denominators: Tensor
    counts: Tensor


@torch.no_grad()
def evaluation_sums(
    model: nn.Module,
    learner: DraftLearner,
    draws: Draws,
    collator: Collator,
    features: Callable[[Fed], Features],
    batch_size: int,
    rank: tuple[int, int],
    device: torch.device,
) -> tuple[Evaluated, bool]:
    """The sums over the share of `rank` (number, of how many) in `draws`, and whether targets were known.

    `model` is `learner` as the ranks call it. Every rank runs as many batches, since a sharded learner needs all of
    them; those beyond a rank's share count nothing.
    """
    number, ranks = rank
    found: list[Evaluated] = []
    knows_target = True
    for start in range(0, len(draws), batch_size * ranks):
        first = start + number * batch_size
        own = range(first, min(first + batch_size, len(draws)))
        fed = collator([draws[index] for index in own or [0]])["fed"].to(device)
        known = features(fed)
        numerators, counts = model(fed.batch, known)
        knows_target = knows_target and known.final is not None
        sums = (numerators.double(), learner.denominators(fed.batch), counts)
        found.append(Evaluated(*(value * bool(own) for value in sums)))
    return Evaluated(*(torch.stack(values).sum(0) for values in zip(*found, strict=True))), knows_target
