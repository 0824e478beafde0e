"""Latent attention: shapes, scale, cache, degenerate head widths, the absorbed twin, and what is refused."""

import pytest
import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from draftc.runtime.attention.mla import AbsorbedLatentAttention, LatentAttention, yarn_softmax_scale
from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import Turn, rope_table
from draftc.runtime.visibility import View
from tests.runtime.drafts import absorbed_twin

B, C, Q, H = 2, 9, 4, 16
SEEN = View(None, "sdpa", 0.0, None)


def latent(plain: int = 6, turned: int = 4, style: str | None = "interleaved", **changed: object) -> LatentAttention:
    torch.manual_seed(0)
    facts = {
        "hidden_size": H,
        "num_attention_heads": 3,
        "q_lora_rank": 7,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": turned,
        "v_head_dim": 5,
        "rms_norm_eps": 1e-6,
        "rope_style": style,
        "softmax_scale": 0.3,
        "attention_bias": False,
        "output_gate": False,
    }
    attention = LatentAttention(**{**facts, **changed}).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return attention


def streams(rows: int = C) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randn(B, n, H, dtype=torch.float64, generator=generator)  # noqa: E731
    return draw(Q), draw(rows)


def table(attention: nn.Module, first: int, rows: int) -> tuple[Tensor, Tensor] | None:
    if attention.rope_style is None:
        return None
    return rope_table(Turn(attention.rope_style, attention.turned, 10000.0), first + torch.arange(rows).expand(B, -1))


def run(attention: nn.Module, block: Tensor, context: Tensor, view: View = SEEN, memory=None, first: int = 0):
    rope = table(attention, first, context.shape[1] + block.shape[1])
    anchors = torch.full((B, 1), context.shape[1])
    return attention(block, context, anchors, rope, view, memory or NoMemory())


FORMS = [
    pytest.param({}, id="usual"),
    pytest.param({"q_lora_rank": None}, id="plain-query"),
    pytest.param({"style": "half"}, id="half"),
    pytest.param({"plain": 0}, id="shared-key-only"),
    pytest.param({"turned": 0, "style": None}, id="no-shared-key"),
    pytest.param({"style": None}, id="shared-key-unrotated"),
    pytest.param({"output_gate": True}, id="gate"),
    pytest.param({"attention_bias": True}, id="bias"),
]


@pytest.mark.parametrize(
    ("factor", "weight", "width", "scale"),
    [
        (40, 1, 192, 0.1352337788608801),
        (40, 0.707, 192, 0.1147213867929261),
        (64, 1, 192, 0.1446796258026892),
        (1, 1, 192, 0.0721687836487032),
        (0.5, 1, 192, 0.0721687836487032),
        (40, 0, 192, 0.0721687836487032),
        (40, None, 192, 0.0721687836487032),
        (4, 0.5, 6, 0.4668049619803550),
    ],
)
def test_the_softmax_scale_of_yarn(factor, weight, width, scale) -> None:
    scaling = {"rope_type": "yarn", "factor": factor, "mscale_all_dim": weight}
    assert yarn_softmax_scale(width, scaling) == pytest.approx(scale, abs=1e-15)


def test_a_default_rope_leaves_the_softmax_scale_alone() -> None:
    assert yarn_softmax_scale(192, {"rope_type": "default", "factor": 40, "mscale_all_dim": 1}) == 192**-0.5
    assert yarn_softmax_scale(192, None) == 192**-0.5


def test_a_scale_without_a_number_for_factor_is_refused() -> None:
    with pytest.raises(ValueError, match="factor is None"):
        yarn_softmax_scale(192, {"rope_type": "yarn", "mscale_all_dim": 1.0})


def test_parameters_have_the_public_names_and_shapes() -> None:
    shapes = {name: tuple(value.shape) for name, value in latent(output_gate=True).state_dict().items()}
    assert shapes == {
        "q_a_proj.weight": (7, H),
        "q_a_layernorm.weight": (7,),
        "q_b_proj.weight": (30, 7),
        "kv_a_proj_with_mqa.weight": (12, H),
        "kv_a_layernorm.weight": (8,),
        "kv_b_proj.weight": (33, 8),
        "g_proj.weight": (15, H),
        "o_proj.weight": (H, 15),
    }
    biased = latent(attention_bias=True, output_gate=True).state_dict()
    assert {name for name in biased if name.endswith("bias")} == {
        "q_a_proj.bias",
        "kv_a_proj_with_mqa.bias",
        "o_proj.bias",
    }
    plain = latent(q_lora_rank=None, attention_bias=True).state_dict()
    assert plain["q_proj.weight"].shape == (30, H)
    assert "q_proj.bias" not in plain


@pytest.mark.parametrize("form", FORMS)
def test_the_absorbed_twin_agrees_outputs_and_gradients(form) -> None:
    attention = latent(**form)
    twin = absorbed_twin(attention)
    block, context = (x.requires_grad_() for x in streams())
    leaves = {"block": block, "context": context, **dict(attention.named_parameters())}
    found = []
    for module in (attention, twin):
        out = run(module, block, context)
        loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
        found.append((out, *torch.autograd.grad(loss, list(leaves.values()))))
    for name, ours, theirs in zip(["out", *leaves], *found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_the_twin_owns_nothing() -> None:
    attention = latent()
    twin = absorbed_twin(attention)
    assert type(twin) is AbsorbedLatentAttention
    assert type(attention) is LatentAttention
    assert list(twin.state_dict()) == list(attention.state_dict())
    assert all(a is b for a, b in zip(twin.parameters(), attention.parameters(), strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("absorbed", [False, True])
def test_cached_steps_equal_one_call_and_keep_only_the_latent(form, absorbed) -> None:
    attention = latent(**form)
    module = absorbed_twin(attention) if absorbed else attention
    block, context = streams()
    want = run(module, block, context)
    memory = DynamicLayer()
    draft = torch.zeros_like(block)
    run(module, draft, context[:, :5], memory=memory)
    memory.crop(-Q)
    out = run(module, block, context[:, 5:], memory=memory, first=5)
    torch.testing.assert_close(out, want, rtol=1e-11, atol=1e-11)
    assert memory.keys.shape == (B, 1, C + Q, attention.rank)
    assert memory.values.shape == (B, 1, C + Q, attention.turned)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("absorbed", [False, True])
def test_a_query_that_sees_nothing_yields_zero_in_spite_of_a_bias(backend, absorbed) -> None:
    attention = latent(attention_bias=True)
    module = absorbed_twin(attention) if absorbed else attention
    block, context = streams()
    mask = torch.ones(B, 1, Q, C + Q, dtype=torch.bool)
    mask[1, :, 2] = False
    live = mask[:, 0].any(-1)
    out = run(module, block, context, View(mask, backend, 0.0, live))
    assert torch.equal(out[1, 2], torch.zeros(H, dtype=out.dtype))
    full = run(module, block, context)
    torch.testing.assert_close(out[0], full[0], rtol=1e-11, atol=1e-11)


def test_the_gate_multiplies_the_heads() -> None:
    attention = latent(output_gate=True)
    block, context = streams()
    with torch.no_grad():
        attention.g_proj.weight.zero_()
    plain = latent()
    plain.load_state_dict({name: value for name, value in attention.state_dict().items() if "g_proj" not in name})
    torch.testing.assert_close(run(attention, block, context) * 2, run(plain, block, context), rtol=1e-12, atol=1e-12)


def test_an_unrotated_shared_key_is_kept_as_it_is() -> None:
    attention = latent(style=None)
    block, context = streams()
    memory = DynamicLayer()
    run(attention, block, context, memory=memory)
    shared = attention.kv_a_proj_with_mqa(torch.cat([context, block], dim=1))[..., attention.rank :]
    assert torch.equal(memory.values[:, 0], shared)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"plain": 0, "turned": 0, "style": None}, "no channels"),
        ({"turned": 0}, "even qk_rope_head_dim"),
        ({"turned": 3}, "even qk_rope_head_dim"),
        ({"style": "neox"}, "'neox' is none of"),
    ],
)
def test_heads_that_cannot_be_built_are_refused(form, message) -> None:
    with pytest.raises(ValueError, match=message):
        latent(**form)


@pytest.mark.parametrize("absorbed", [False, True])
def test_a_layer_is_one_graph(absorbed) -> None:
    attention = latent(output_gate=True)
    compiled = torch.compile(absorbed_twin(attention) if absorbed else attention, fullgraph=True, backend="eager")
    block, context = streams()
    torch.testing.assert_close(run(compiled, block, context), run(attention, block, context), rtol=1e-11, atol=1e-11)
