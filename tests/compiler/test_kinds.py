"""Stacks of every kind as bundles hold them: positions, isolation, checkpointing, sharding, far positions, counts."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from draftc.spec.layout import Mla, RopeScaling
from tests.compiler.bundles import compiled
from tests.compiler.support import ATTENTIONS, INTERLEAVED, MLA
from tests.oracles.wide import widen
from tests.runtime.drafts import scrambled, streams

KINDS = ("near", "multi", "latent", "latent_full", "recurrent", "scan")
HYBRID = ("recurrent", "scan", "latent", "near", "context")


def bundle(*names: str, **changes: Any) -> Any:
    """The emitted model of a stack, float64, random weights."""
    torch.manual_seed(0)
    return scrambled(compiled(*names, **changes).model(dtype=torch.float64).eval())


def step(model: Any, noise: Tensor, taps: Tensor, **inputs: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(noise_embeds=noise, context_hidden_states=taps, **inputs).last_hidden_state
    return out


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_is_uncached_is_the_training_form_wherever_a_kind_stands(kind: str, place: int) -> None:
    stack = ["context", "context"]
    stack.insert(place, kind)
    model = bundle(*stack)
    draw = random.Random(f"{kind}{place}")
    noise, taps = streams(model, 26, blocks=7)
    cache, anchors, outs, end = DynamicCache(config=model.config), [], [], 0
    for number in range(7):
        new = draw.randint(1, 4) if number else draw.randint(0, 5)
        own, start, end = noise[:, 4 * number : 4 * number + 4], end, end + new
        outs.append(step(model, own, taps[:, start:end], cache=cache))
        close(outs[-1], step(model, own, taps[:, :end]))
        cache.crop(-4)
        anchors.append(end)
    close(step(model, noise, taps, anchors=torch.tensor([anchors])), torch.cat(outs, dim=1))


def test_a_block_knows_no_other_to_the_bit() -> None:
    model = bundle(*HYBRID)
    noise, taps = streams(model, 11, blocks=4)
    anchors = torch.tensor([[0, 5, 5, 11]])
    before = step(model, noise, taps, anchors=anchors)
    moved = noise.clone()
    moved[:, 4:8] += 20
    after = step(model, moved, taps, anchors=anchors)
    assert torch.equal(after[:, :4], before[:, :4])
    assert torch.equal(after[:, 8:], before[:, 8:])
    assert not torch.equal(after[:, 4:8], before[:, 4:8])


def test_a_block_knows_no_context_from_its_anchor_on_to_the_bit() -> None:
    model = bundle(*HYBRID)
    noise, taps = streams(model, 11, blocks=2)
    anchors = torch.tensor([[4, 7]])
    before = step(model, noise, taps, anchors=anchors)
    changed = taps.clone()
    changed[:, 4:] *= -3
    after = step(model, noise, changed, anchors=anchors)
    close(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 4:], before[:, 4:])


def trained(model: Any, noise: Tensor, taps: Tensor) -> dict[str, Tensor]:
    """Output and gradients of a training step with a dropped block."""
    model.zero_grad()
    out = model(noise_embeds=noise, context_hidden_states=taps, anchors=torch.tensor([[3, 9, -1]])).last_hidden_state
    out.square().mean().backward()
    return {"out": out.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_nothing_in_a_hybrid_stack(reentrant: bool) -> None:
    model = bundle(*HYBRID).train()
    noise, taps = streams(model, 11, blocks=3)
    noise.requires_grad_()  # reentrant checkpoints need an input with a gradient
    plain = trained(model, noise, taps)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    replayed = trained(model, noise, taps)
    # What all layers read gathers their gradients in another order, when each layer's backward is a graph of its own.
    gathered = ("fc.weight", "hidden_norm.weight") if reentrant else ()
    for name, value in plain.items():
        if name in gathered:
            torch.testing.assert_close(replayed[name], value, rtol=1e-14, atol=1e-16)
        else:
            assert torch.equal(replayed[name], value), name


@pytest.fixture
def _one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model: Any, policy: MixedPrecisionPolicy) -> Any:
    """`model` by FSDP2, a unit for every layer and one for the rest."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


@pytest.mark.usefixtures("_one_rank")
def test_a_hybrid_stack_shards_by_layer_and_gives_the_same_gradients() -> None:
    whole, parted = bundle(*HYBRID).train(), bundle(*HYBRID).train()
    names = list(parted.state_dict())
    noise, taps = streams(whole, 11, blocks=3)
    want = trained(whole, noise, taps)
    parted = sharded(parted, MixedPrecisionPolicy())
    found = trained(parted, noise, taps)
    for name, value in want.items():
        other = found[name].full_tensor() if hasattr(found[name], "full_tensor") else found[name]
        torch.testing.assert_close(other, value, rtol=1e-12, atol=1e-12)
    assert list(parted.state_dict()) == names


@pytest.mark.usefixtures("_one_rank")
def test_fp32_masters_train_in_bfloat16_as_a_bfloat16_model_decodes() -> None:
    """The policy hands `A_log` and `dt_bias` over in bfloat16; a loaded draft keeps them wide: both round alike."""
    masters, loaded = bundle(*HYBRID).float(), bundle(*HYBRID).to(torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            parameter.data = masters.get_parameter(name).data.clone()
    noise, taps = (each.bfloat16() for each in streams(masters, 11, blocks=3))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    parted = sharded(masters, policy).train()
    anchors = torch.tensor([[3, 9, -1]])
    out = parted(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, step(loaded.train(), noise, taps, anchors=anchors))
    out.float().square().mean().backward()
    assert {p.grad.dtype for p in parted.parameters()} == {torch.float32}
    assert all(torch.isfinite(p.grad.full_tensor()).all() for p in parted.parameters())


def test_one_dtype_for_each_unit_is_what_sharding_asks_for() -> None:
    """A model loaded in bfloat16 keeps float32 parts; the masters that train have one dtype in every layer."""
    masters = compiled(*HYBRID).model(dtype=torch.float32)
    assert all(len({p.dtype for p in layer.parameters()}) == 1 for layer in masters.layers)
    loaded = compiled(*HYBRID).model(dtype=torch.bfloat16)
    wide = [name for name, p in loaded.named_parameters() if p.dtype == torch.float32]
    assert wide
    assert all(name.endswith(("A_log", "dt_bias")) for name in wide)


FAR = 40 * 64 - 30
YARN = {"factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707, "mscale_all_dim": 1.0}


def outside(spec: Mla, model: Any) -> tuple[Any, Any]:
    """transformers' attention of DeepSeek-V3 with the weights of the first layer of `model`, and its rotary table."""
    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_attention_heads,
        q_lora_rank=spec.q_lora_rank,
        kv_lora_rank=spec.kv_lora_rank,
        qk_nope_head_dim=spec.qk_nope_head_dim,
        qk_rope_head_dim=spec.qk_rope_head_dim,
        v_head_dim=spec.v_head_dim,
        rope_interleave=spec.rope is not None and spec.rope.style == "interleaved",
        rope_parameters={"rope_theta": 10000.0, "rope_type": "yarn", **YARN},
        max_position_embeddings=2560,
        attn_implementation="eager",
    )
    theirs = DeepseekV3Attention(config, 0).double()
    theirs.load_state_dict(model.layers[0].self_attn.state_dict())
    return theirs, DeepseekV3RotaryEmbedding(config)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_yarn_far_from_the_first_position_in_both_forms(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the bundle: its turn, its table, its softmax scale with m²; training expands, decoding absorbs."""
    widen(monkeypatch, modeling_deepseek_v3)
    scaling = RopeScaling("yarn", tuple(YARN.items()))
    spec = replace(MLA, rope=replace(INTERLEAVED, style=style, scaling=scaling))
    model = bundle("far", attentions={"far": spec}, max_position_embeddings=2560)
    theirs, rotary = outside(spec, model)
    seen: list[tuple[Tensor, ...]] = []
    model.layers[0].self_attn.register_forward_hook(lambda _, given, out: seen.append((*given[:2], out)))
    noise, taps = streams(model, 9)
    positions = FAR + torch.arange(13)[None]
    step(model, noise, taps, position_ids=positions, anchors=torch.tensor([[9]]))
    step(model, noise, taps, position_ids=positions)
    assert type(model.layers[0].self_attn).__name__ == "FarAbsorbedAttention"
    mask = torch.zeros(1, 1, 13, 13, dtype=torch.float64)
    for block, context, out in seen:
        rows = torch.cat([context, block], dim=1)
        want = theirs(rows, tuple(table.double() for table in rotary(rows.float(), positions)), mask)[0][:, 9:]
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-7)
    close(seen[0][2], seen[1][2])
    near = bundle("far", attentions={"far": replace(spec, rope=INTERLEAVED)}, max_position_embeddings=2560)
    assert not torch.allclose(
        step(near, noise, taps, position_ids=positions), step(model, noise, taps, position_ids=positions)
    )


def test_attentions_of_these_tests_are_those_of_the_compiler() -> None:
    assert set(KINDS) | set(HYBRID) <= set(ATTENTIONS)
