"""Specs in one line of words: the docstrings of emitted classes."""

from typing import assert_never

from draftc.spec.layout import AttentionSpec, Gqa, Kda, LayerSpec, Mla, MlpSpec, Rope


def describe_layer(spec: LayerSpec) -> str:
    """Say what surrounds and what is inside a layer."""
    seen = _visible(spec.attention)
    return f"Decoder layer around the attention `{spec.name}`{seen}."


def describe_mlp(spec: MlpSpec) -> str:
    """Say the width and activation of a feed-forward part."""
    return f"Gated MLP of {spec.intermediate_size} channels with {spec.hidden_act}."


def describe_attention(spec: AttentionSpec) -> str:
    """Say the kind and the widths of an attention."""
    match spec:
        case Gqa():
            return _gqa(spec)
        case Mla():
            return _mla(spec)
        case Kda():
            return _kda(spec)
        case _:
            assert_never(spec)


def _gqa(spec: Gqa) -> str:
    heads = f"{spec.num_attention_heads} query heads on {spec.num_key_value_heads} key-value heads of {spec.head_dim}"
    return f"Grouped-query attention: {heads} channels, {_rope(spec.rope)}."


def _mla(spec: Mla) -> str:
    heads = f"{spec.num_attention_heads} heads of {spec.qk_nope_head_dim} + {spec.qk_rope_head_dim} channels"
    latent = f"keys and values from a latent of {spec.kv_lora_rank} channels"
    return f"Multi-head latent attention: {heads}, {latent}, {_rope(spec.rope)}."


def _kda(spec: Kda) -> str:
    start = "the state before its anchor" if spec.context_state == "scan" else "zero"
    heads = f"{spec.num_heads} heads of {spec.head_dim} channels"
    return f"Kimi delta attention: {heads}, convolution of {spec.short_conv_kernel_size}, each block from {start}."


def _rope(rope: Rope | None) -> str:
    if rope is None:
        return "no rope"
    scaled = f" with {rope.scaling.rope_type} scaling" if rope.scaling else ""
    return f"{rope.style} rope{scaled}"


def _visible(spec: AttentionSpec) -> str:
    window = f", window {spec.sliding_window}" if spec.sliding_window else ""
    return f"{window}, causal inside a block" if spec.is_causal else window
