"""Attention by torch's `flex_attention`, which skips the tiles of a block mask that no query sees."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from draftc.runtime.request import BackendRequest, Refusal
from draftc.runtime.visibility import View, ViewError

NARROWEST_FLEX_HEAD = 16  # channels: the least that a matrix product of its CUDA kernels takes


@cache
def compiled_flex() -> Any:
    """Flex attention as one kernel, compiled when first called."""
    return torch.compile(flex_attention)


def attend_flex(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a `BlockMask` or none, and no dropout; else `ViewError`."""
    if view.mask is not None and not isinstance(view.mask, BlockMask):
        raise ViewError(f"flex reads a BlockMask, not a {type(view.mask).__name__}")
    if view.dropout:
        raise ViewError(f"flex drops no attention weights; dropout is {view.dropout}")
    plain = torch.compiler.is_compiling() or q.device.type == "cpu"
    run = flex_attention if plain else compiled_flex()
    return run(q, k, v, block_mask=view.mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])


def refuse_flex(request: BackendRequest) -> tuple[Refusal, ...]:
    """Dropout always; gradients on CPU; narrow heads, float64 and cards before Turing on CUDA."""
    reasons = []
    if request.dropout > 0:
        reasons.append(Refusal("dropout", f"attention_dropout is {request.dropout}; flex drops no weights"))
    if request.device == "cpu" and request.needs_grad:
        reasons.append(Refusal("cpu-gradient", "flex has no backward on CPU, and gradients are needed"))
    return (*reasons, *refuse_flex_kernel(request)) if request.device == "cuda" else tuple(reasons)


def refuse_flex_kernel(request: BackendRequest) -> tuple[Refusal, ...]:
    """What the CUDA kernels cannot run."""
    reasons = []
    least = min(request.q_dim, request.v_dim)
    if least < NARROWEST_FLEX_HEAD:
        text = f"heads of {request.q_dim} and {request.v_dim} channels; its kernels need {NARROWEST_FLEX_HEAD}"
        reasons.append(Refusal("narrow-head", text))
    if request.dtype == "float64":
        reasons.append(Refusal("dtype", "its kernels compute in float32, not float64"))
    if request.capability is not None and request.capability < (7, 0):
        text = f"compute capability {request.capability[0]}.{request.capability[1]} is below 7.0"
        reasons.append(Refusal("capability", text))
    return tuple(reasons)
