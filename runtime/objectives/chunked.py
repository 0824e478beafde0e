"""Sums over blocks in slices, each forgotten and computed again in the backward pass: no logits are ever held whole."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from draftc.runtime.objectives.acceptance import Count, acceptance_counts
from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps
from draftc.runtime.objectives.term import Objective

Score = Callable[[tuple[Tensor | None, ...], Steps], Scored]
Recomputing = Callable[[], AbstractContextManager[None]]


def chunked_sums(
    objective: Objective,
    score: Score,
    rows: tuple[Tensor | None, ...],
    steps: Steps,
    size: int,
    recomputing: Recomputing = nullcontext,
    count: Count = acceptance_counts,
) -> tuple[Tensor, Tensor]:
    """The numerators of the terms, `[terms]`, and what `count` counts, over all blocks; exact, since both add up.

    `score` makes logits of a slice of `rows`, tensors with one entry per block, and of `steps`. `size` is the number of
    blocks of a slice; 0 takes all at once and keeps them. `recomputing` is entered around every second computation.
    Raises `ObjectiveError` when there is no block.
    """
    blocks = steps.labels.shape[0]
    if not blocks:
        raise ObjectiveError("there is no block to evaluate an objective on")

    def sums(part: Steps, *values: Tensor | None) -> tuple[Tensor, Tensor]:
        scored = score(values, part)
        return objective.numerators(part, scored), count(part, scored)

    if not size:
        return sums(steps, *rows)
    contexts = lambda: (nullcontext(), recomputing())  # noqa: E731 - what torch calls, once per slice
    found = []
    for start in range(0, blocks, size):
        stop = min(start + size, blocks)
        values = [None if row is None else row[start:stop] for row in rows]
        part = steps.part(start, stop)
        found.append(checkpoint(sums, part, *values, use_reentrant=False, context_fn=contexts))
    numerators, counts = zip(*found, strict=True)
    return torch.stack(numerators).sum(0), torch.stack(counts).sum(0)
