"""Logits processors that look at earlier tokens, such as a repetition penalty: each row of a batch sees its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList, RepetitionPenaltyLogitsProcessor


def own_processors(target: Any) -> LogitsProcessorList:
    """What the target's generation configuration asks for: its repetition penalty, if it has one."""
    penalty = getattr(target.generation_config, "repetition_penalty", None)
    found = LogitsProcessorList()
    if penalty not in (None, 1.0):
        found.append(RepetitionPenaltyLogitsProcessor(penalty=penalty))
    return found


def processed(
    processors: LogitsProcessorList, logits: Tensor, texts: Sequence[Sequence[int]], drafted: Tensor
) -> Tensor:
    """`logits [B, D+1, V]` as `processors` change them: those of step j after the text of the row and j drafted tokens.

    `texts[r]` is all of row r so far, prompt included; `drafted [B, D]`.
    """
    if not processors:
        return logits
    rows = []
    for row, text in enumerate(texts):
        whole: Any = torch.cat([torch.tensor(text, device=logits.device), drafted[row]])[None]
        seen = [whole[:, : len(text) + step] for step in range(logits.shape[1])]
        rows.append(torch.cat([processors(ids, logits[row, step][None]) for step, ids in enumerate(seen)]))
    return torch.stack(rows)
