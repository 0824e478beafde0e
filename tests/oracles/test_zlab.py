"""Dense drafts equal z-lab's published model, outputs and gradients, in every mixture of its attention."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from draftc.runtime.draft import DraftModel
from draftc.runtime.memory import DraftCache
from tests.oracles.outside import assert_equal, assert_same_gradients, block_mask, widen_norms
from tests.runtime.drafts import Dense, dense_draft, gradients, scrambled, streams

DFlashDraftModel = pytest.importorskip("dflash.model", reason="z-lab's package dflash is missing").DFlashDraftModel
FULL, SLIDING = Dense(), Dense(window=5, is_causal=True)
STACKS = {
    "full": (FULL, FULL),
    "sliding": (SLIDING, SLIDING),
    "mixed": (SLIDING, FULL, SLIDING),
    "all-causal": (Dense(is_causal=True), SLIDING),
    "none-causal": (Dense(window=5), FULL),
    "window-1": (Dense(window=1, is_causal=True), FULL),
    "wide-window": (Dense(window=40, is_causal=True),),
    "biased": (Dense(bias=True), Dense(bias=True, window=3, is_causal=True)),
    "mha": (Dense(heads=4, kv_heads=4),),
    "mqa": (Dense(heads=4, kv_heads=1, head_dim=16, rotated=16),),
    "gelu": (Dense(hidden_act="gelu"),),
    "gelu-tanh": (Dense(hidden_act="gelu_pytorch_tanh"),),
}


@pytest.fixture(autouse=True)
def _wide_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_norms(monkeypatch, Qwen3RMSNorm)


def causality(layers: tuple[Dense, ...]) -> bool | None:
    """z-lab's `is_causal`: None is its default by layer type, a bool overrides all layers."""
    if all(layer.is_causal == (layer.window is not None) for layer in layers):
        return None
    assert len({layer.is_causal for layer in layers}) == 1
    return layers[0].is_causal


def zlab_draft(layers: tuple[Dense, ...], **fields: object) -> nn.Module:
    first = layers[0]
    windows = [layer.window for layer in layers if layer.window]
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=len(layers),
        num_attention_heads=first.heads,
        num_key_value_heads=first.kv_heads,
        head_dim=first.head_dim,
        hidden_act=first.hidden_act,
        rms_norm_eps=1e-6,
        attention_bias=first.bias,
        layer_types=["sliding_attention" if layer.window else "full_attention" for layer in layers],
        use_sliding_window=bool(windows),
        sliding_window=max(windows, default=None),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        num_target_layers=8,
        is_causal=causality(layers),
        dflash_config={"target_layer_ids": [0, 2], "block_size": 4, "mask_token_id": 63, **fields},
    )
    return scrambled(DFlashDraftModel(config).double().eval())


def pair(layers: tuple[Dense, ...], **fields: object) -> tuple[DraftModel, nn.Module]:
    theirs = zlab_draft(layers, **fields)
    ours = dense_draft(*layers, **fields)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_decoding_step(stack: str, rows: int, backend: str) -> None:
    ours, theirs = pair(STACKS[stack])
    ours.set_attn_implementation(backend)
    noise, taps = (tensor.requires_grad_() for tensor in streams(ours, rows, batch=2))
    positions = torch.arange(rows + 4)[None]
    want = theirs(position_ids=positions, noise_embedding=noise, target_hidden=taps)
    got = ours(noise_embeds=noise, context_hidden_states=taps, position_ids=positions).last_hidden_state
    assert_equal(got, want)
    assert_same_gradients(gradients(got, ours, noise, taps), gradients(want, theirs, noise, taps))


def test_positions_that_are_derived_and_zlab_names() -> None:
    ours, theirs = pair(STACKS["mixed"])
    noise, taps = streams(ours, 9)
    want = theirs(position_ids=torch.arange(13)[None], noise_embedding=noise, target_hidden=taps)
    got = ours(noise_embedding=noise, target_hidden=taps, past_key_values=None, use_cache=False, is_causal=False)
    assert_equal(got.last_hidden_state, want)


@pytest.mark.parametrize("stack", STACKS)
def test_steps_with_a_cache(stack: str) -> None:
    ours, theirs = pair(STACKS[stack])
    mine, his = DraftCache(config=ours.config), DynamicCache(config=theirs.config)
    his.activate_past_recording()
    past = 0
    for step, rows in enumerate((6, 1, 3, 4, 2)):
        noise, taps = streams(ours, rows, seed=step)
        positions = torch.arange(past, past + rows + 4)[None]
        want = theirs(
            position_ids=positions, noise_embedding=noise, target_hidden=taps, past_key_values=his, use_cache=True
        )
        got = ours(noise_embeds=noise, context_hidden_states=taps, position_ids=positions, cache=mine)
        assert_equal(got.last_hidden_state, want)
        mine.crop(-4)
        his.crop(-4)
        past += rows
        assert mine.get_seq_length() == his.get_seq_length() == past


def test_training_blocks() -> None:
    ours, theirs = pair(STACKS["full"])
    anchors = torch.tensor([[2, 5, 9], [1, 1, 11]])
    noise, taps = (tensor.requires_grad_() for tensor in streams(ours, 12, blocks=3, batch=2))
    slots = (anchors[..., None] + torch.arange(4)).flatten(1)
    positions = torch.cat([torch.arange(12).expand(2, -1), slots], dim=1)
    mask = block_mask(anchors, 12, 4)
    want = theirs(position_ids=positions, attention_mask=mask, noise_embedding=noise, target_hidden=taps)
    got = ours(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
    assert_equal(got, want)
    assert_same_gradients(gradients(got, ours, noise, taps), gradients(want, theirs, noise, taps))


def test_logits_scaled_and_capped() -> None:
    ours, theirs = pair(STACKS["full"], output_multiplier=0.7, final_logit_softcapping=1.5)
    head = torch.nn.Linear(32, 64, bias=False).double()
    hidden = torch.randn(1, 4, 32, dtype=torch.float64)
    assert_equal(ours.logits(hidden, head), theirs.compute_logits(hidden, head))


def test_float32_stays_within_float32() -> None:
    ours, theirs = (model.float() for model in pair(STACKS["mixed"]))
    noise, taps = (tensor.float() for tensor in streams(ours, 11))
    want = theirs(position_ids=torch.arange(15)[None], noise_embedding=noise, target_hidden=taps)
    assert_equal(ours(noise, taps).last_hidden_state, want, 1e-6)
