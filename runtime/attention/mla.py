"""Multi-head latent attention of a draft layer, in two forms with the same parameters and the same cache.

The cache is always the latent: `[B, 1, T, r_kv]` as keys and the shared rotated key `[B, 1, T, d_rope]` as values of a
stock layer, r_kv + d_rope numbers a row whatever the number of heads. What differs is where the latent grows:

- `LatentAttention` expands every cached row to keys and values of all heads, then attends. One pass over the rows costs
  2·T·r_kv·h·(d_nope + d_v) operations and writes T·h·(d_qk + d_v) numbers; with many queries (training: 8,192 on 12,288
  rows) the narrow heads more than pay for it.
- `AbsorbedLatentAttention` moves the key half of `kv_b_proj` to the queries and the value half to the result, so all
  heads share one key of r_kv + d_rope channels and nothing of T·h numbers is written. Scores and sums cost
  2·Q·T·h·(2·r_kv + d_rope) instead of 2·Q·T·h·(d_qk + d_v). Both cost the same at
  Q = r_kv·(d_nope + d_v) / (2·r_kv - d_nope - d_v) queries: 171 at the usual 512, 128 and 128. A step has 7 to 16.

At 32 heads, T = 2,048 and 16 queries: 17.9 GFLOP and 42 MB of expanded keys and values a layer against 2.4 GFLOP and a
read of 2.4 MB. They are two classes and not a flag, since each is one straight line of code. The compiler decides which
one decodes (pass select, with such numbers for a layout), prints both where that is the absorbed one, and
`DecodingForms` turns an attention into the other class when the phase changes.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from draftc.runtime.attend import attend
from draftc.runtime.memory import Memory
from draftc.runtime.norm import RMSNorm
from draftc.runtime.rope import Rope, rotate_half, rotate_interleaved
from draftc.runtime.visibility import View, silence


def yarn_softmax_scale(width: int, scaling: Mapping[str, object] | None) -> float:
    """Factor on the scores of latent attention: `width**-0.5`, times m² when the rope is scaled with `mscale_all_dim`.

    `width` is d_nope + d_rope. m = 0.1·mscale_all_dim·ln(factor) + 1 for a factor above 1, else 1, as DeepSeek-V3 does.
    cos and sin have a factor of their own, which is not part of this. `scaling` holds transformers' rope parameters.
    Raises `ValueError` when `mscale_all_dim` stands without a `factor`, or one of both is no number.
    """
    base = width**-0.5
    if not scaling or scaling.get("rope_type", "default") == "default" or not scaling.get("mscale_all_dim"):
        return base
    factor, weight = scaling.get("factor"), scaling["mscale_all_dim"]
    if not isinstance(factor, int | float) or not isinstance(weight, int | float):
        raise ValueError(f"the softmax scale needs numbers: factor is {factor!r}, mscale_all_dim {weight!r}")
    m = 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
    return base * m * m


def check_latent_head(plain: int, turned: int, rope_style: str | None) -> None:
    """Raise `ValueError` unless a query has channels, and a rotation has an even number of channels to turn."""
    if rope_style not in ("half", "interleaved", None):
        raise ValueError(f"rope_style {rope_style!r} is none of 'half', 'interleaved', None")
    if plain + turned == 0:
        raise ValueError("qk_nope_head_dim and qk_rope_head_dim are both 0: queries have no channels")
    if rope_style is not None and (turned == 0 or turned % 2):
        raise ValueError(f"rope_style {rope_style!r} needs an even qk_rope_head_dim above 0, got {turned}")


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over the target's context and the draft's blocks.

    Keys and values of all heads come from one latent of `kv_lora_rank` channels; `qk_rope_head_dim` more are one key
    shared by all heads, which alone is rotated. Parameter names and shapes are those of DeepSeek-V3.

    `q_lora_rank` None: one plain query projection. `qk_nope_head_dim` or `qk_rope_head_dim` may be 0, not both.
    `rope_style` is `half`, `interleaved` or None (the shared key is kept as it is). `softmax_scale` multiplies the
    scores; see `yarn_softmax_scale`. `attention_bias` puts biases on `q_a_proj`, `kv_a_proj_with_mqa` and `o_proj`.
    `output_gate` multiplies the concatenated heads by the sigmoid of `g_proj` (without bias).
    Raises `ValueError` for an unknown `rope_style`, heads without channels, or a rotation without channels.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        rms_norm_eps: float,
        rope_style: str | None,
        softmax_scale: float,
        attention_bias: bool,
        output_gate: bool,
    ) -> None:
        super().__init__()
        check_latent_head(qk_nope_head_dim, qk_rope_head_dim, rope_style)
        self.heads = num_attention_heads
        self.q_lora_rank = q_lora_rank
        self.rank = kv_lora_rank
        self.plain = qk_nope_head_dim
        self.turned = qk_rope_head_dim
        self.width = qk_nope_head_dim + qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.rope_style = rope_style
        self.scale = softmax_scale
        self.attention_bias = attention_bias
        self.output_gate = output_gate
        q_width = num_attention_heads * self.width
        v_width = num_attention_heads * v_head_dim
        if q_lora_rank is None:
            self.q_proj = nn.Linear(hidden_size, q_width, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden_size, q_lora_rank, bias=attention_bias)
            self.q_a_layernorm = RMSNorm(q_lora_rank, rms_norm_eps)
            self.q_b_proj = nn.Linear(q_lora_rank, q_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_lora_rank + qk_rope_head_dim, bias=attention_bias)
        self.kv_a_layernorm = RMSNorm(kv_lora_rank, rms_norm_eps)
        self.kv_b_proj = nn.Linear(kv_lora_rank, num_attention_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        if output_gate:
            self.g_proj = nn.Linear(hidden_size, v_width, bias=False)
        self.o_proj = nn.Linear(v_width, hidden_size, bias=attention_bias)

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

        `rope` is `(cos, sin)`, each `[B, C+Q, d_rope]`; `memory` returns its P kept rows followed by the C+Q new ones,
        and `view` says which of these P+C+Q keys each query may see. A query that sees none yields exactly zero.
        """
        keyed = torch.cat([context, block], dim=1)
        q = self.q_proj(block) if self.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(block)))
        q = q.unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        if self.rope_style is not None:
            q_plain, q_turned = q.split((self.plain, self.turned), dim=-1)
        latent, k_turned = self.kv_a_proj_with_mqa(keyed).split((self.rank, self.turned), dim=-1)
        if self.rope_style == "half":
            q_turned, k_turned = rotate_half(q_turned, k_turned[:, None], rope)
        elif self.rope_style == "interleaved":
            q_turned, k_turned = rotate_interleaved(q_turned, k_turned[:, None], rope)
        else:
            k_turned = k_turned[:, None]
        if self.rope_style is not None:
            q = torch.cat([q_plain, q_turned], dim=-1)
        latent, k_turned = memory.update(self.kv_a_layernorm(latent)[:, None], k_turned)
        kv = self.kv_b_proj(latent[:, 0]).unflatten(-1, (self.heads, self.plain + self.v_head_dim)).transpose(1, 2)
        k_plain, v = kv.split((self.plain, self.v_head_dim), dim=-1)
        k = torch.cat([k_plain, k_turned.expand(-1, self.heads, -1, -1)], dim=-1)
        out = attend(q, k, v, view, scale=self.scale)
        out = out.transpose(1, 2).flatten(-2)
        if self.output_gate:
            out = out * torch.sigmoid(self.g_proj(block))
        if not self.attention_bias:
            return self.o_proj(out)
        return silence(self.o_proj(out), view)


class AbsorbedLatentAttention(LatentAttention):
    """`LatentAttention` for few queries: the same parameters, cache and values, computed on the latent itself.

    q·(W_k l) = (W_kᵀ q)·l, and Σ p·(W_v l) = W_v Σ p·l: `kv_b_proj` meets queries and results, never the cached rows.
    It adds a forward and nothing else, so that an attention can take either class.
    Differentiable as well; sums are taken in another order, so results agree to rounding and not to the bit.
    """

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor,  # noqa: ARG002 - one signature for every kind of attention
        rope: Rope,
        view: View,
        memory: Memory,
    ) -> Tensor:
        """Attend as `LatentAttention.forward` does; all heads read one key of r_kv + d_rope channels."""
        keyed = torch.cat([context, block], dim=1)
        q = self.q_proj(block) if self.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(block)))
        q = q.unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        q_plain, q_turned = q.split((self.plain, self.turned), dim=-1)
        latent, k_turned = self.kv_a_proj_with_mqa(keyed).split((self.rank, self.turned), dim=-1)
        if self.rope_style == "half":
            q_turned, k_turned = rotate_half(q_turned, k_turned[:, None], rope)
        elif self.rope_style == "interleaved":
            q_turned, k_turned = rotate_interleaved(q_turned, k_turned[:, None], rope)
        else:
            k_turned = k_turned[:, None]
        latent, k_turned = memory.update(self.kv_a_layernorm(latent)[:, None], k_turned)
        grown = self.kv_b_proj.weight.unflatten(0, (self.heads, self.plain + self.v_head_dim))
        to_key, to_value = grown.split((self.plain, self.v_head_dim), dim=1)
        q = torch.cat([q_plain @ to_key, q_turned], dim=-1)
        k = torch.cat([latent, k_turned], dim=-1)
        out = attend(q, k, latent, view, scale=self.scale)
        out = (out @ to_value.transpose(1, 2)).transpose(1, 2).flatten(-2)
        if self.output_gate:
            out = out * torch.sigmoid(self.g_proj(block))
        if not self.attention_bias:
            return self.o_proj(out)
        return silence(self.o_proj(out), view)
