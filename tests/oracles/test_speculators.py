"""Training blocks of full attention equal the speculators package's. (Its sliding windows count from the anchor.)"""

import pytest
import torch

from draftc.runtime.blocks import noise_ids
from tests.oracles.outside import assert_equal, assert_same_gradients, widen_norms
from tests.runtime.drafts import FULL, dense_draft, gradients, scrambled

speculators = pytest.importorskip("speculators.models.dflash.core", reason="speculators or what it imports is missing")


def test_training_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from speculators.models.dflash import DFlashSpeculatorConfig
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    widen_norms(monkeypatch, Qwen3RMSNorm)
    inner = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    inner._attn_implementation = "sdpa"
    config = DFlashSpeculatorConfig(
        transformer_layer_config=inner,
        draft_vocab_size=64,
        block_size=4,
        aux_hidden_state_layer_ids=[1, 3],
        mask_token_id=63,
    )
    theirs = scrambled(speculators.DFlashDraftModel(config).double().eval())
    ours = dense_draft(FULL, FULL)
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()}, strict=True)
    anchors = torch.tensor([2, 5, 9])
    monkeypatch.setattr(speculators, "select_anchors", lambda *_: (anchors, torch.ones(3, dtype=torch.bool)))
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 60, (1, 15), generator=generator)
    taps = torch.randn(1, 15, 64, generator=generator, dtype=torch.float64).requires_grad_()
    want = theirs._backbone_forward(
        hidden_states=taps,
        input_ids=tokens,
        loss_mask=torch.ones(1, 15),
        verifier_last_hidden_states=torch.zeros(1, 15, 32, dtype=torch.float64),
        document_ids=torch.zeros(1, 15, dtype=torch.long),
        max_anchors=3,
    )[0]
    noise = theirs.embed_tokens(noise_ids(tokens, anchors[None], 4, 63))
    got = ours(noise, taps, anchors=anchors[None]).last_hidden_state
    assert_equal(got, want)
    ours_grads = gradients(got, ours, taps)
    theirs_grads = gradients(want, theirs, taps)
    assert_same_gradients(ours_grads, {name: theirs_grads[name] for name in ours_grads})
