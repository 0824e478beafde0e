"""Latent attention agrees with transformers' DeepSeek-V3 over context and block side by side, in both its forms."""

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from draftc.runtime.attention.mla import LatentAttention, yarn_softmax_scale
from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import Turn, rope_table
from draftc.runtime.visibility import View
from tests.oracles.wide import widen
from tests.runtime.drafts import absorbed_twin

B, C, Q, H = 2, 7, 6, 24
YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}


def outside(q_lora_rank: int | None, style: str, scaling: dict, bias: bool) -> DeepseekV3Config:
    return DeepseekV3Config(
        hidden_size=H,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=10,
        qk_nope_head_dim=4,
        qk_rope_head_dim=6,
        v_head_dim=5,
        attention_bias=bias,
        rope_interleave=style == "interleaved",
        rope_parameters={"rope_theta": 10000.0, **(scaling or {"rope_type": "default"})},
        max_position_embeddings=2560,
        attn_implementation="eager",
    )


@pytest.fixture(autouse=True)
def _float64(monkeypatch: pytest.MonkeyPatch) -> None:
    widen(monkeypatch, modeling_deepseek_v3)


class Pair:
    """The same weights in transformers' attention and in ours, and one batch with positions far from 0."""

    def __init__(self, q_lora_rank: int | None, style: str, scaling: dict, bias: bool, first: int = 1700) -> None:
        torch.manual_seed(3)
        config = outside(q_lora_rank, style, scaling, bias)
        self.theirs = DeepseekV3Attention(config, 0).double()
        scale = yarn_softmax_scale(10, scaling)
        self.ours = LatentAttention(H, 3, q_lora_rank, 10, 4, 6, 5, 1e-6, style, scale, bias, False).double()
        with torch.no_grad():
            for parameter in self.theirs.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.4)
        self.ours.load_state_dict(self.theirs.state_dict())
        self.block = torch.randn(B, Q, H, dtype=torch.float64, requires_grad=True)
        self.context = torch.randn(B, C, H, dtype=torch.float64, requires_grad=True)
        self.positions = first + torch.arange(C + Q).expand(B, -1)
        pairs = tuple(sorted(scaling.items())) or None
        self.rope = rope_table(Turn(style, 6, 10000.0, pairs, 2560), self.positions)
        self.their_rope = tuple(table.double() for table in self.rope)
        self.mask = torch.rand(B, 1, Q, C + Q) < 0.6
        self.mask[..., 0] = True
        self.weight = torch.randn(B, Q, H, dtype=torch.float64)

    def outside_out(self) -> Tensor:
        added = torch.zeros(B, 1, C + Q, C + Q, dtype=torch.float64)
        added[:, :, C:].masked_fill_(~self.mask, float("-inf"))
        both = torch.cat([self.context, self.block], dim=1)
        return self.theirs(both, self.their_rope, added)[0][:, C:]

    def out(self, attention: nn.Module) -> Tensor:
        anchors = torch.full((B, 1), C)
        view = View(self.mask, "eager", 0.0, None)
        return attention(self.block, self.context, anchors, self.rope, view, NoMemory())

    def gradients(self, out: Tensor, attention: nn.Module) -> dict[str, Tensor]:
        leaves = {"block": self.block, "context": self.context, **dict(attention.named_parameters())}
        return dict(zip(leaves, torch.autograd.grad((out * self.weight).sum(), list(leaves.values())), strict=True))


CASES = [
    pytest.param(rank, style, scaling, bias, id=f"{style}-q{rank}-{'yarn' if scaling else 'plain'}-bias{bias}")
    for rank, style, scaling, bias in [
        (None, "interleaved", {}, False),
        (None, "half", YARN, False),
        (8, "interleaved", YARN, True),
        (8, "half", {}, True),
        (8, "half", {**YARN, "mscale_all_dim": 0.0}, False),
        (8, "interleaved", {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, False),
    ]
]


@pytest.mark.parametrize(("rank", "style", "scaling", "bias"), CASES)
@pytest.mark.parametrize("absorbed", [False, True])
def test_outputs_and_gradients_are_those_of_deepseek_v3(rank, style, scaling, bias, absorbed) -> None:
    pair = Pair(rank, style, scaling, bias)
    ours = absorbed_twin(pair.ours) if absorbed else pair.ours
    want, got = pair.outside_out(), pair.out(ours)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    expected = pair.gradients(want, pair.theirs)
    for name, gradient in pair.gradients(got, ours).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("rank", "style", "scaling", "bias"), CASES)
def test_a_row_of_a_weight_off_by_a_millionth_is_seen(rank, style, scaling, bias) -> None:
    pair = Pair(rank, style, scaling, bias)
    want = pair.outside_out()
    for name, parameter in pair.ours.named_parameters():
        with torch.no_grad():
            kept = parameter.clone()
            parameter[0].mul_(1 + 1e-6)
            moved = (pair.out(pair.ours) - want).abs().max()
            parameter.copy_(kept)
        assert moved > 1e-9, name


@pytest.mark.parametrize("change", ["scale", "style", "position"])
def test_a_wrong_scale_style_or_position_is_seen(change) -> None:
    pair = Pair(8, "interleaved", YARN, False)
    want = pair.outside_out()
    if change == "scale":
        pair.ours.scale = 10**-0.5
    elif change == "style":
        pair.ours.rope_style = "half"
    else:
        later = pair.positions.clone()
        later[:, C:] += 1
        pair.rope = rope_table(Turn("interleaved", 6, 10000.0, tuple(sorted(YARN.items())), 2560), later)
    assert (pair.out(pair.ours) - want).abs().max() > 1e-4
