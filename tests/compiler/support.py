"""Small layouts made by hand, for tests of the compiler."""

from dataclasses import replace
from typing import Any

from draftc.spec.layout import AttentionSpec, Dflash, Gqa, Kda, LayerSpec, Layout, Mla, MlpSpec, Rope, Target

HALF = Rope("half", 10000.0)
INTERLEAVED = Rope("interleaved", 10000.0)
GQA = Gqa(4, 2, 8, HALF, True, False, "none", None, False)
LOCAL = replace(GQA, sliding_window=9, is_causal=True)
MLA = Mla(3, 7, 12, 10, 6, 5, 1e-6, INTERLEAVED, False, "none", None, False)
KDA = Kda(3, 8, 4, -5.0, "low_rank", "reset")
SCAN = replace(KDA, context_state="scan", gate_lower_bound=None, output_gate="full")

ATTENTIONS: dict[str, AttentionSpec] = {
    "context": GQA,
    "multi": replace(GQA, num_key_value_heads=4, rope=INTERLEAVED),
    "bare": replace(GQA, rope=None, qk_norm=False),
    "biased": replace(GQA, attention_bias=True, output_gate="full"),
    "partial": replace(GQA, rope=Rope("half", 10000.0, 0.5)),
    "near": LOCAL,
    "latent": MLA,
    "latent_full": replace(MLA, q_lora_rank=None, rope=HALF, attention_bias=True, output_gate="full"),
    "latent_bare": replace(MLA, rope=None),
    "recurrent": KDA,
    "scan": SCAN,
    "scan_low": replace(SCAN, output_gate="low_rank", gate_lower_bound=-5.0),
}


def layout(*names: str, attentions: dict[str, AttentionSpec] | None = None, **changes: Any) -> Layout:
    """A layout whose layers are the named attentions."""
    known = attentions or ATTENTIONS
    mlp = MlpSpec(40, "silu")
    layers = tuple(LayerSpec(i, name, known[name], mlp) for i, name in enumerate(names))
    base = Layout(
        name="tiny",
        description="",
        family=Dflash(),
        target=Target(hidden_size=24, num_hidden_layers=8, vocab_size=100),
        target_layer_ids=(1, 3),
        final_tap=None,
        target_stream_contraction=None,
        block_size=4,
        mask_token_id=99,
        hidden_size=24,
        rms_norm_eps=1e-6,
        max_position_embeddings=128,
        draft_vocab_size=100,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=None,
        attention_dropout=0.0,
        initializer_range=0.02,
        dtype="float32",
        layers=layers,
    )
    return replace(base, **changes)


def qwen3_8b() -> Layout:
    """Five full layers at the width of Qwen3-8B."""
    attention = Gqa(32, 8, 128, Rope("half", 1e6), True, False, "none", None, False)
    mlp = MlpSpec(12288, "silu")
    return layout(
        target=Target(hidden_size=4096, num_hidden_layers=36, vocab_size=151936),
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        hidden_size=4096,
        max_position_embeddings=40960,
        draft_vocab_size=151936,
        dtype="bfloat16",
        layers=tuple(LayerSpec(i, "context", attention, mlp) for i in range(5)),
    )
