"""Attention in plain steps: the reference of every other backend. It holds all scores in memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.attend.dense import dense_mask, share_heads, silence_heads
from draftc.runtime.visibility import View


def attend_eager(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it; the softmax in fp32 at least. Needs a bool mask or none."""
    mask = dense_mask(view)
    scores = q @ share_heads(k, q.shape[1]).mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    weights = F.dropout(weights, view.dropout)
    return silence_heads(weights @ share_heads(v, q.shape[1]), view)
