"""Attention by torch's `scaled_dot_product_attention`, which picks a fused kernel where there is one."""

import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.attend.dense import dense_mask, share_heads, silence_heads
from draftc.runtime.visibility import View


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a bool mask or none."""
    mask = dense_mask(view)
    if mask is None and k.shape[1] == 1:
        # One head of keys: the heads of a query are further queries of that head, which any fused kernel takes.
        folded = F.scaled_dot_product_attention(q.flatten(1, 2)[:, None], k, v, None, view.dropout, scale=scale)
        return silence_heads(folded[:, 0].unflatten(1, q.shape[1:3]), view)
    if mask is not None:
        # On CUDA no fused kernel takes a mask and grouped heads at once.
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    grouped = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, mask, view.dropout, scale=scale, enable_gqa=grouped)
    return silence_heads(out, view)
