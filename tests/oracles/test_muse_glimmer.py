"""Dense drafts equal transformers' own DFlash draft. Its windows are inclusive both ways: its W is our W + 1."""

import inspect

import pytest
import torch
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantRMSNorm

from draftc.runtime.draft import DraftModel
from tests.oracles.outside import assert_equal, assert_same_gradients, widen_norms
from tests.runtime.drafts import Dense, dense_draft, gradients, scrambled, streams

# transformers 5.19 calls it past_key_values.
CACHE = "cache" if "cache" in inspect.signature(MuseGlimmerAssistantModel.forward).parameters else "past_key_values"
RENAMED = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
STACKS = {"full": (None, None), "sliding": (4, 4), "mixed": (2, None, 2)}


@pytest.fixture(autouse=True)
def _wide_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_norms(monkeypatch, MuseGlimmerAssistantRMSNorm)


def our_name(theirs: str) -> str:
    for old, new in RENAMED.items():
        theirs = theirs.replace(old, new)
    return theirs


def pair(windows: tuple[int | None, ...]) -> tuple[DraftModel, MuseGlimmerAssistantModel]:
    config = MuseGlimmerAssistantConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=len(windows),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=["sliding_attention" if window else "full_attention" for window in windows],
        sliding_window=max((window for window in windows if window), default=8),
        block_size=4,
        mask_token_id=63,
        target_layer_ids=[0, 2],
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    theirs = scrambled(MuseGlimmerAssistantModel(config).double().eval())
    ours = dense_draft(*(Dense(window=None if window is None else window + 1) for window in windows))
    ours.load_state_dict({our_name(name): value for name, value in theirs.state_dict().items()}, strict=True)
    return ours, theirs


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("chunks", [(6,), (6, 1, 4, 3, 2)])
def test_steps_with_a_cache(stack: str, chunks: tuple[int, ...]) -> None:
    ours, theirs = pair(STACKS[stack])
    mine, his = DFlashCache(config=ours.config), DFlashCache(config=theirs.config)
    his.activate_past_recording()
    past = 0
    for step, rows in enumerate(chunks):
        noise, taps = streams(ours, rows, seed=step)
        his.set_previous_accepted_tokens(rows)
        if past:
            mine.crop(-4)
            his.crop(-4)
        positions = torch.arange(past, past + rows + 4)[None]
        fed = {"noise_embeds": noise, "context_hidden_states": taps, "position_ids": positions}
        with torch.no_grad():
            want, got = theirs(**fed, **{CACHE: his}), ours(**fed, cache=mine)
        assert_equal(got.last_hidden_state, want.last_hidden_state)
        past += rows


def test_gradients() -> None:
    ours, theirs = pair(STACKS["full"])
    noise, taps = (tensor.requires_grad_() for tensor in streams(ours, 7))
    cache = DFlashCache(config=theirs.config)
    cache.set_previous_accepted_tokens(7)
    positions = torch.arange(11)[None]
    want = theirs(noise, taps, position_ids=positions, **{CACHE: cache}).last_hidden_state
    got = ours(noise, taps).last_hidden_state
    assert_equal(got, want)
    expected = {our_name(name): value for name, value in gradients(want, theirs, noise, taps).items()}
    assert_same_gradients(gradients(got, ours, noise, taps), expected)
