"""Specs in one line of words: the docstrings of emitted classes."""

from typing import assert_never

from draftc.spec.layout import (
    AttentionSpec,
    Dflash,
    Dflash2,
    Domino,
    Dspark,
    Family,
    Gqa,
    Kda,
    LayerSpec,
    Mla,
    MlpSpec,
    Rope,
)


def describe_layer(spec: LayerSpec, family: Family) -> str:
    """Say what surrounds and what is inside a layer."""
    seen = _visible(spec.attention)
    taps = f", convolutions of {family.conv_kernel_size} taps" if isinstance(family, Dflash2) else ""
    return f"Decoder layer around the attention `{spec.name}`{seen}{taps}."


def describe_family(family: Family) -> str:
    """Say which heads and convolutions a family adds to the stack, as a sentence; empty for DFlash."""
    match family:
        case Dflash():
            return ""
        case Dflash2():
            around = f"{family.conv_kernel_size} taps in groups of {family.conv_group_size} channels"
            selector = f"a selector of rank {family.selector_rank} among the best {family.selector_top_k} candidates"
            return f"Dynamic convolutions around every sublayer, {around}, and {selector} of a slot."
        case Domino():
            gru = f"A recurrence of {family.gru_hidden_dim} channels over the drafted prefix"
            return f"{gru} corrects the logits behind the first {family.pure_draft_prefix_len} steps."
        case Dspark():
            return _dspark(family)
        case _:
            assert_never(family)


def _dspark(family: Dspark) -> str:
    markov = f"A {family.markov_head_type} Markov head of rank {family.markov_rank} on the token before each slot"
    confidence = "a confidence head for every drafted token"
    named = [markov] if family.markov_rank else []
    if family.enable_confidence_head:
        named.append(confidence if named else confidence.capitalize())
    return f"{', and '.join(named)}." if named else ""


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


def describe_form(attention: str) -> str:
    """Say what the decoding form of the class `attention` does."""
    return f"`{attention}` for few queries: all heads read one latent, which is never expanded."


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
