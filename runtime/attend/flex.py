"""Attention by torch's `flex_attention`, which skips the tiles of a block mask that no query sees."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from draftc.runtime.visibility import View, ViewError

FLEX_VARIANTS = 64  # windows, causal orders, head counts, with and without gradients, that one process may compile
WIDEST_DEFAULT = 128  # channels of a float32 head that torch has tiles for on every card


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Any:
    """Flex attention by torch's general kernel."""
    grouped = k.shape[1] != q.shape[1]
    return flex_attention(
        q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped, kernel_options=flex_options(q.dtype, q.shape[-1])
    )


def flex_options(dtype: torch.dtype, width: int) -> Any:
    """What torch is told about the kernel for heads of `width` channels.

    Left to itself, 2.11 takes a kernel made for decoding for fewer than 128 queries, which it lacks in float32; and for
    wide heads in float32 it takes tiles that need more shared memory than a multiprocessor has.
    """
    if dtype == torch.float32 and width > WIDEST_DEFAULT:
        return {"BACKEND": "TRITON", "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32, "fwd_num_stages": 1}
    return {"BACKEND": "TRITON"}


@cache
def compiled_flex() -> Any:
    """Flex attention as one kernel, compiled when first called."""
    return torch.compile(flex, fullgraph=True)


def fused_flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Tensor:
    """Flex attention as one kernel. Beyond the compiler's usual 8 variants it would raise."""
    with torch._dynamo.config.patch(recompile_limit=FLEX_VARIANTS):
        out: Tensor = compiled_flex()(q, k, v, mask, scale)
        return out


def plain_flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Tensor:
    """Flex attention without a kernel of its own: inside a compiled region, or in plain operations on CPU."""
    with warnings.catch_warnings():
        # It warns that all scores are held in memory, which is what a CPU run asks for.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out: Tensor = flex(q, k, v, mask, scale)
        return out


def attend_flex(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a `BlockMask` or none, and no dropout; else `ViewError`.

    A query that sees nothing needs no care: the kernel sums over no key and gives zeros.
    """
    if view.mask is not None and not isinstance(view.mask, BlockMask):
        raise ViewError(f"flex reads a BlockMask, not a {type(view.mask).__name__}")
    if view.dropout:
        raise ViewError(f"flex drops no attention weights; dropout is {view.dropout}")
    if torch.compiler.is_compiling():
        out: Tensor = flex(q, k, v, view.mask, scale)
        return out
    run = plain_flex if q.device.type == "cpu" else fused_flex
    return run(q, k, v, view.mask, scale)
