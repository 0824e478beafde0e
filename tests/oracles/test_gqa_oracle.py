"""Grouped-query attention equals transformers' attention over context and block, for every option it has."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GlmConfig, LlamaConfig, Qwen3Config, Qwen3NextConfig
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRMSNorm

from draftc.runtime.attention.gqa import GroupedQueryAttention
from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import Turn, rope_table
from draftc.runtime.visibility import View
from tests.oracles.outside import assert_equal, assert_same_gradients, widen_norms
from tests.runtime.drafts import gradients, scrambled

CONTEXT, BLOCK = 7, 5
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "attn_implementation": "sdpa",
}
EVERYTHING = View(None, "sdpa", 0.0, None)


def ours(rope_style: str | None, qk_norm: bool, bias: bool, gate: bool) -> GroupedQueryAttention:
    return GroupedQueryAttention(32, 4, 2, 8, 1e-6, rope_style, qk_norm, bias, gate).double()


def compare(mine: nn.Module, theirs: nn.Module, rotated: int, style: str = "half", grads: bool = True) -> None:
    """Both over the same rows; `theirs` reads context and block as one sequence, and its last rows are the block's."""
    generator = torch.Generator().manual_seed(4)
    context = torch.randn(2, CONTEXT, 32, generator=generator, dtype=torch.float64).requires_grad_()
    block = torch.randn(2, BLOCK, 32, generator=generator, dtype=torch.float64).requires_grad_()
    positions = torch.arange(3, 3 + CONTEXT + BLOCK).expand(2, -1)
    rope = rope_table(Turn(style, rotated, 10000.0), positions)
    their_rope = tuple(table.double() for table in rope)
    if mine.rope_style is None:
        their_rope = (torch.ones_like(their_rope[0]), torch.zeros_like(their_rope[1]))
    theirs.is_causal = False
    want = theirs(torch.cat([context, block], dim=1), position_embeddings=their_rope, attention_mask=None)[0]
    got = mine(block, context, torch.tensor([[CONTEXT]]), rope, EVERYTHING, NoMemory())
    assert_equal(got, want[:, CONTEXT:])
    expected = gradients(want[:, CONTEXT:], theirs, context, block)
    found = gradients(got, mine, context, block)
    if grads:
        assert_same_gradients(found, expected)
    assert_equal(found["0"], expected["0"])
    assert_equal(found["1"], expected["1"])


def test_heads_that_are_normed(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_norms(monkeypatch, Qwen3RMSNorm)
    theirs = scrambled(Qwen3Attention(Qwen3Config(**SIZES, attention_bias=True), 0).double())
    mine = ours("half", True, True, False)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    compare(mine, theirs, 8)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("style", ["half", None])
def test_heads_without_norm(bias: bool, style: str | None) -> None:
    theirs = scrambled(LlamaAttention(LlamaConfig(**SIZES, attention_bias=bias), 0).double())
    mine = ours(style, False, bias, False)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    compare(mine, theirs, 8)


def test_interleaved_rotation_of_half_the_channels() -> None:
    config = GlmConfig(**SIZES, attention_bias=False, partial_rotary_factor=0.5)
    theirs = scrambled(GlmAttention(config, 0).double())
    mine = ours("interleaved", False, False, False)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    compare(mine, theirs, 4, "interleaved")


def test_the_output_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(self: nn.Module, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, self.weight.shape, 1.0 + self.weight, self.eps)

    monkeypatch.setattr(Qwen3NextRMSNorm, "forward", wide)
    theirs = scrambled(Qwen3NextAttention(Qwen3NextConfig(**SIZES, attention_bias=False), 0).double())
    mine = ours("half", True, False, True)
    state = theirs.state_dict()
    queries, gates = state.pop("q_proj.weight").unflatten(0, (4, 2, 8)).unbind(1)
    state |= {"q_proj.weight": queries.flatten(0, 1), "g_proj.weight": gates.flatten(0, 1)}
    state |= {name: 1.0 + state[name] for name in ("q_norm.weight", "k_norm.weight")}
    mine.load_state_dict(state, strict=True)
    compare(mine, theirs, 8, grads=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_norm_is_transformers_bit_for_bit(dtype: torch.dtype) -> None:
    from draftc.runtime.norm import RMSNorm

    mine, theirs = RMSNorm(64, 1e-6).to(dtype), Qwen3RMSNorm(64, 1e-6).to(dtype)
    weight = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    hidden = (torch.randn(7, 33, 64, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    results = []
    for norm in (mine, theirs):
        norm.weight.data = weight.clone()
        given = hidden.clone().requires_grad_()
        out = norm(given)
        out.sum().backward()
        results.append((out, given.grad, norm.weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
