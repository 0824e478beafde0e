"""Attention by the optional package flash_attn (arXiv:2307.08691): one block behind a context without padding."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.visibility import Band, View, ViewError


def flash_kernel() -> Any:
    """`flash_attn_func` of the package; `ViewError` when it is not installed."""
    try:
        from flash_attn import flash_attn_func
    except ImportError as missing:
        raise ViewError("attention backend flash needs the package flash_attn, which is not installed") from missing
    return flash_attn_func


def attend_flash(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a `Band` or no mask; else `ViewError`.

    Values narrower than keys are padded with zeros and the result is cut: the kernel takes one width.
    """
    if view.mask is not None and not isinstance(view.mask, Band):
        raise ViewError(f"flash reads a band, not a {type(view.mask).__name__}")
    band = Band(-1, -1) if view.mask is None else view.mask
    width, value_width = q.shape[-1], v.shape[-1]
    widest = max(width, value_width)
    q, k = F.pad(q, (0, widest - width)), F.pad(k, (0, widest - width))
    v = F.pad(v, (0, widest - value_width))
    rows = (x.transpose(1, 2) for x in (q, k, v))
    out: Tensor = flash_kernel()(*rows, dropout_p=view.dropout, softmax_scale=scale, window_size=tuple(band))
    return out.transpose(1, 2)[..., :value_width]
