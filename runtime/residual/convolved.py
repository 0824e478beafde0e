"""The layer of DFlash2: short convolutions along the block, before and after each sublayer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftc.runtime.kda.math import fold_blocks
from draftc.runtime.memory import Memory
from draftc.runtime.residual.sums import PlainResidual
from draftc.runtime.rope import Rope
from draftc.runtime.visibility import View


def convolve_blocks(rows: Tensor, kernel: Tensor, delta: Tensor, block_size: int) -> Tensor:
    """Causal convolution within blocks by a kernel that every row changes: `[B, Q, H] -> [B, Q, H]`.

    y_i = sum_t (kernel_t + delta_{i,t}) * rows_{i-t}, rows before the first of a block being zero; `kernel` is
    `[taps, H]`, `delta [B, Q, taps, groups]` has one number for each group of H / groups neighbouring channels.
    Computed in at least float32 and rounded once. Raises `BlockSizeError` when Q is no multiple of `block_size`.
    """
    taps, groups = delta.shape[-2:]
    wide = torch.promote_types(rows.dtype, torch.float32)
    blocks = fold_blocks(rows, block_size).unflatten(-1, (groups, -1)).to(wide)
    padded = F.pad(blocks, (0, 0, 0, 0, taps - 1, 0))
    weights = kernel.unflatten(-1, (groups, -1)) + delta.view(-1, block_size, taps, groups, 1).to(wide)
    shifted = (padded[:, taps - 1 - t : taps - 1 - t + block_size] for t in range(taps))
    mixed = sum(weights[:, :, t] * part for t, part in enumerate(shifted))
    return mixed.flatten(-2).view_as(rows).to(rows.dtype)


class DynamicKernels(nn.Module):
    """Kernels of the two convolutions around a sublayer: `base_kernel [2, taps, H]`, and what each row changes.

    Every row of the sublayer's normed input gives two changes `[B, Q, taps, groups]` to the base kernel: of the
    convolution before the sublayer, and of the one after it.
    """

    def __init__(self, hidden_size: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.taps = taps
        self.group_size = group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * (hidden_size // group_size), bias=False)

    def forward(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Changes before and after the sublayer, each `[B, Q, taps, groups]`, of `normed [B, Q, H]`."""
        before, after = self.kernel_projection(normed).unflatten(-1, (2, self.taps, -1)).unbind(-3)
        return before, after

    def extra_repr(self) -> str:
        """Width, taps and channels of a group, shown by `print(model)`."""
        return f"{self.hidden_size}, taps={self.taps}, group_size={self.group_size}"


class ConvolvedResidual(PlainResidual):
    """`PlainResidual` with a dynamic convolution before and after each sublayer, never across the end of a block.

    `conv_kernel_size` taps, one change of a tap for each `conv_group_size` channels, which must divide `hidden_size`
    (`ValueError`).
    """

    def __init__(
        self,
        hidden_size: int,
        rms_norm_eps: float,
        self_attn: nn.Module,
        mlp: nn.Module,
        conv_kernel_size: int,
        conv_group_size: int,
        block_size: int,
    ) -> None:
        super().__init__(hidden_size, rms_norm_eps, self_attn, mlp)
        if hidden_size % conv_group_size:
            raise ValueError(f"groups of {conv_group_size} channels do not divide a width of {hidden_size}")
        if not 1 <= conv_kernel_size <= block_size:
            raise ValueError(f"{conv_kernel_size} taps do not fit blocks of {block_size} slots")
        self.block_size = block_size
        self.attention_conv = DynamicKernels(hidden_size, conv_kernel_size, conv_group_size)
        self.mlp_conv = DynamicKernels(hidden_size, conv_kernel_size, conv_group_size)

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor,
        rope: Rope | None,
        view: View,
        memory: Memory,
    ) -> Tensor:
        """Update `block [B, Q, H]` from `context [B, C, H]`; `anchors [B, N]` are row numbers into `context`."""
        normed = self.input_layernorm(block)
        before, after = self.attention_conv(normed)
        normed = convolve_blocks(normed, self.attention_conv.base_kernel[0], before, self.block_size)
        out = self.self_attn(normed, context, anchors, rope, view, memory)
        block = block + convolve_blocks(out, self.attention_conv.base_kernel[1], after, self.block_size)
        normed = self.post_attention_layernorm(block)
        before, after = self.mlp_conv(normed)
        normed = convolve_blocks(normed, self.mlp_conv.base_kernel[0], before, self.block_size)
        out = self.mlp(normed)
        return block + convolve_blocks(out, self.mlp_conv.base_kernel[1], after, self.block_size)
