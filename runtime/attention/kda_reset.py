"""Kimi delta attention of a draft layer, every block on its own."""

import torch
from torch import Tensor, nn

from draftc.runtime.kda import kda
from draftc.runtime.kda.layer import GatedRMSNorm, ShortConvolution
from draftc.runtime.kda.math import fold_blocks
from draftc.runtime.memory import NoMemory, RecurrentMemory
from draftc.runtime.rope import Rope
from draftc.runtime.visibility import View, silence


class DeltaAttention(nn.Module):
    """Kimi delta attention (arXiv:2510.26692) from a zero state at the start of every block; no context enters.

    Parameter names and shapes are those of the public KDA drafts, which SpecForge trains and SGLang serves: convolution
    weights `[P, K]` with P = num_heads * head_dim, `A_log [h]`, no bias on any projection. Checkpoints of Kimi targets
    have the same names, but fla-core's convolution is an `nn.Conv1d` of weight `[P, 1, K]` and `A_log` is
    `[1, 1, h, 1]`; transformers joins the three convolutions to `conv1d.weight [3P, 1, K]` when it loads them. Weights
    from there need `squeeze(1)` and `flatten()`.

    `gate_lower_bound` is negative, or None for the softplus gate. `full_gate` takes the output gate from one projection
    `g_proj`, otherwise from `g_a_proj` and `g_b_proj` by way of `head_dim` channels.
    Raises `ValueError` for a bound that is not negative, or a convolution of less than one tap.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        short_conv_kernel_size: int,
        gate_lower_bound: float | None,
        full_gate: bool,
        rms_norm_eps: float,
        block_size: int,
    ) -> None:
        super().__init__()
        if gate_lower_bound is not None and not gate_lower_bound < 0:
            raise ValueError(f"gate_lower_bound {gate_lower_bound} is not negative")
        if short_conv_kernel_size < 1:
            raise ValueError(f"short_conv_kernel_size {short_conv_kernel_size} is less than one tap")
        self.heads = num_heads
        self.head_dim = head_dim
        self.tail = short_conv_kernel_size - 1
        self.lower_bound = gate_lower_bound
        self.full_gate = full_gate
        self.block_size = block_size
        width = num_heads * head_dim
        self.q_proj = nn.Linear(hidden_size, width, bias=False)
        self.k_proj = nn.Linear(hidden_size, width, bias=False)
        self.v_proj = nn.Linear(hidden_size, width, bias=False)
        self.q_conv1d = ShortConvolution(width, short_conv_kernel_size)
        self.k_conv1d = ShortConvolution(width, short_conv_kernel_size)
        self.v_conv1d = ShortConvolution(width, short_conv_kernel_size)
        self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
        self.f_a_proj = nn.Linear(hidden_size, head_dim, bias=False)
        self.f_b_proj = nn.Linear(head_dim, width, bias=False)
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        if full_gate:
            self.g_proj = nn.Linear(hidden_size, width, bias=False)
        else:
            self.g_a_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.g_b_proj = nn.Linear(head_dim, width, bias=False)
        self.o_norm = GatedRMSNorm(head_dim, rms_norm_eps)
        self.o_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(
        self,
        block: Tensor,
        context: Tensor,  # noqa: ARG002 - one signature for every kind of attention
        anchors: Tensor,  # noqa: ARG002
        rope: Rope | None,  # noqa: ARG002
        view: View,
        memory: NoMemory | RecurrentMemory,  # noqa: ARG002
    ) -> Tensor:
        """Mix the rows within every block of `block [B, Q, H]`, each row seeing itself and those before it.

        Returns `[B, Q, H]`, exactly zero for the rows of dropped blocks. Raises `BlockSizeError` when Q is no multiple
        of the block size.
        """
        rows = fold_blocks(block, self.block_size)
        q = self.q_conv1d(self.q_proj(rows), view).unflatten(-1, (self.heads, self.head_dim))
        k = self.k_conv1d(self.k_proj(rows), view).unflatten(-1, (self.heads, self.head_dim))
        v = self.v_conv1d(self.v_proj(rows), view).unflatten(-1, (self.heads, self.head_dim))
        decay = self.f_b_proj(self.f_a_proj(rows)).unflatten(-1, (self.heads, self.head_dim))
        beta = self.b_proj(rows)
        out = kda(q, k, v, decay, beta, self.A_log, self.dt_bias, None, view, self.lower_bound)
        gate = self.g_proj(rows) if self.full_gate else self.g_b_proj(self.g_a_proj(rows))
        out = self.o_norm(out, gate.unflatten(-1, (self.heads, self.head_dim)), view).flatten(-2)
        return silence(self.o_proj(out).view_as(block), view)
