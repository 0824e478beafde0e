"""Grouped-query attention of a draft layer."""

import torch
from torch import Tensor, nn

from draftc.runtime.attend import attend
from draftc.runtime.memory import Memory
from draftc.runtime.norm import RMSNorm
from draftc.runtime.rope import Rope, rotate_half, rotate_interleaved
from draftc.runtime.visibility import View, silence


class GroupedQueryAttention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245) whose keys are the target's context, then the draft's own blocks.

    One set of projections serves both; the context enters as it is, the block after the layer's norm. Parameter names
    and shapes are those of Qwen3 and of the public DFlash drafts. Equal head counts make it multi-head attention.

    `rope_style` says which channels of a head turn together: `half` (i and i + r/2), `interleaved` (2i and 2i + 1),
    None: no rotation. `qk_norm` adds an RMSNorm over each head before the rotation, `attention_bias` biases on all four
    projections, `output_gate` a sigmoid gate `g_proj` (without bias) on the concatenated heads.
    Raises `ValueError` when the heads cannot be grouped or `rope_style` is unknown.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        head_dim: int,
        rms_norm_eps: float,
        rope_style: str | None,
        qk_norm: bool,
        attention_bias: bool,
        output_gate: bool,
    ) -> None:
        super().__init__()
        if num_attention_heads % num_key_value_heads:
            raise ValueError(
                f"{num_attention_heads} query heads cannot share {num_key_value_heads} key-value heads evenly"
            )
        if rope_style not in ("half", "interleaved", None):
            raise ValueError(f"rope_style {rope_style!r} is none of 'half', 'interleaved', None")
        self.heads = num_attention_heads
        self.kv_heads = num_key_value_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.rope_style = rope_style
        self.qk_norm = qk_norm
        self.attention_bias = attention_bias
        self.output_gate = output_gate
        width = num_attention_heads * head_dim
        kv_width = num_key_value_heads * head_dim
        self.q_proj = nn.Linear(hidden_size, width, bias=attention_bias)
        self.k_proj = nn.Linear(hidden_size, kv_width, bias=attention_bias)
        self.v_proj = nn.Linear(hidden_size, kv_width, bias=attention_bias)
        self.o_proj = nn.Linear(width, hidden_size, bias=attention_bias)
        if qk_norm:
            self.q_norm = RMSNorm(head_dim, rms_norm_eps)
            self.k_norm = RMSNorm(head_dim, rms_norm_eps)
        if output_gate:
            self.g_proj = nn.Linear(hidden_size, width, bias=False)

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor,  # noqa: ARG002 - one signature for every kind of attention
        rope: Rope,
        view: View,
        memory: Memory,
    ) -> Tensor:
        """Attend from `block [B, Q, H]` to `context [B, C, H]` and `block`; returns `[B, Q, H]`.

        `rope` is `(cos, sin)`, each `[B, C+Q, r]`; `memory` returns its P kept rows followed by the C+Q new ones, and
        `view` says which of these P+C+Q keys each query may see. A query that sees none yields exactly zero.
        """
        keyed = torch.cat([context, block], dim=1)
        q = self.q_proj(block).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_proj(keyed).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(keyed).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        if self.qk_norm:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if self.rope_style == "half":
            q, k = rotate_half(q, k, rope)
        elif self.rope_style == "interleaved":
            q, k = rotate_interleaved(q, k, rope)
        k, v = memory.update(k, v)
        out = attend(q, k, v, view, scale=self.scale)
        out = out.transpose(1, 2).flatten(-2)
        if self.output_gate:
            out = out * torch.sigmoid(self.g_proj(block))
        if not self.attention_bias:
            return self.o_proj(out)
        return silence(self.o_proj(out), view)
