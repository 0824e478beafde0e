"""Attention by the optional package flash_attn (arXiv:2307.08691): one block behind a context without padding."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.request import BackendRequest, Refusal
from draftc.runtime.visibility import Band, View, ViewError

WIDEST_FLASH_HEAD = 256  # channels


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
    out = flash_kernel()(*rows, dropout_p=view.dropout, softmax_scale=scale, window_size=tuple(band))
    return out.transpose(1, 2)[..., :value_width]


def refuse_flash(request: BackendRequest) -> tuple[Refusal, ...]:
    """Training blocks, CPU, dtypes of 32 bits and more, wide heads, cards before Ampere, a missing package."""
    reasons = []
    if request.phase == "training":
        reasons.append(Refusal("mask", "training blocks need a mask; flash takes windows and causal order only"))
    if request.device != "cuda":
        reasons.append(Refusal("device", "flash runs on CUDA only"))
    if request.dtype not in ("bfloat16", "float16"):
        reasons.append(Refusal("dtype", f"flash computes in bfloat16 and float16, not {request.dtype}"))
    widest = max(request.q_dim, request.v_dim)
    if widest > WIDEST_FLASH_HEAD:
        reasons.append(Refusal("wide-head", f"heads of {widest} channels; flash takes {WIDEST_FLASH_HEAD}"))
    if request.capability is not None and request.capability < (8, 0):
        text = f"compute capability {request.capability[0]}.{request.capability[1]} is below 8.0"
        reasons.append(Refusal("capability", text))
    if request.packages.get("flash_attn") is None:
        reasons.append(Refusal("package", "the package flash_attn is not installed"))
    return tuple(reasons)
