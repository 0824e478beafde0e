"""A reduced vocabulary: which tokens of the target the draft's own output head has."""

import torch
from torch import Tensor

from draftc.runtime.rows import DraftInputError


def vocabulary_maps(tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The maps of a draft whose output head has a row for each of `tokens [V_draft]`, distinct ids of the target.

    Returns `d2t` int64 `[V_draft]`, the target's id minus the row, rows in ascending order of ids; and `t2d` bool
    `[vocab_size]`, which ids the draft has. Raises `DraftInputError` for ids that repeat or lie outside the vocabulary.
    """
    ordered = tokens.unique()
    if ordered.numel() != tokens.numel():
        raise DraftInputError(f"{tokens.numel()} tokens of a reduced vocabulary hold {ordered.numel()} distinct ids")
    if ordered.numel() and not 0 <= int(ordered[0]) <= int(ordered[-1]) < vocab_size:
        raise DraftInputError(f"ids {int(ordered[0])} to {int(ordered[-1])} lie outside a vocabulary of {vocab_size}")
    has = torch.zeros(vocab_size, dtype=torch.bool, device=tokens.device)
    has[ordered] = True
    return ordered - torch.arange(ordered.numel(), device=tokens.device), has


def draft_rows(tokens: Tensor, d2t: Tensor, vocab_size: int) -> Tensor:
    """The row of the draft's output head for each of `tokens [..]`, ids of the target; -1 for one that it lacks."""
    rows = torch.arange(d2t.shape[0], device=d2t.device)
    table = rows.new_full((vocab_size,), -1).scatter(0, rows + d2t, rows)
    return table[tokens]
