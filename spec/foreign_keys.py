"""Words that other formats use, what answers them here, and words that are kept for later.

The tables are data: by the kind of mapping in which a word is met (`""`: in any), the word and its answer.
"""

_CONFIG = "this is a word of config.json files; `draftc init` writes a layout to start from"
_LAYERS = "`layers` and `attentions` say it"
_TARGET = "it is a fact of the target: a field of `target`"
_ATTENTION = "it is a key of an attention; write it below `attentions`"
_ROPE = "write `rope: {style, rope_theta, partial_rotary_factor, scaling}`"
_GATE = "write `output_gate`: `none` or `full`, on kda `low_rank` or `full`"
_HEADS = "keys and values have `num_heads` heads of `head_dim` channels"
_LOWER = "write `target_layer_ids`, each id lower by one"
_BACKEND = "a layout chooses no backend; use `--backend`"
_TRAINING = "it is an option of `draftc train`"
_STYLE = "write `style` in `rope`: `half` or `interleaved`"


def _all(answer: str, *words: str) -> dict[str, str]:
    return dict.fromkeys(words, answer)


_ANYWHERE = {
    **_all(_CONFIG, "dflash_config", "architectures", "model_type", "auto_map", "transformers_version"),
    **_all(_CONFIG, "transformer_layer_config", "speculators_config", "speculators_model_type", "eagle_config"),
    **_all(_LAYERS, "num_hidden_layers", "layer_types", "attention_mode", "attention_modes", "use_sliding_window"),
    **_all(_LAYERS, "max_window_layers", "kda_layers", "full_attn_layers"),
    **_all(_TARGET, "num_target_layers", "target_num_hidden_layers", "target_hidden_size", "target_vocab_size"),
    **_all(_TARGET, "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"),
    **_all(_ROPE, "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    **_all(_STYLE, "rope_interleave", "is_neox_style", "mla_rope_interleaved"),
    **_all(_GATE, "use_full_rank_gate", "mla_use_output_gate", "attn_output_gate", "gating"),
    "mla_use_nope": "write `rope: none` in the mla attention",
    "projector_type": "write `family`",
    "aux_hidden_state_layer_ids": _LOWER,
    "eagle_aux_hidden_state_layer_ids": _LOWER,
    "torch_dtype": "write `dtype`",
    "tie_word_embeddings": "the draft owns no embedding, so there is nothing to tie",
    **_all(_BACKEND, "attn_implementation", "_attn_implementation", "attention_backend"),
    "use_cache": "it is not architecture; drop it",
    **_all(_TRAINING, "confidence_head_alpha", "loss_decay_gamma", "num_anchors", "learning_rate", "loss_type"),
    **_all(_TRAINING, "batch_size", "warmup_ratio", "weight_decay", "num_epochs", "max_grad_norm", "max_length"),
    **_all("it is a key of the block `dflash2`", "conv_kernel_size", "conv_group_size"),
    **_all("it is a key of the block `dflash2`", "selector_rank", "selector_top_k"),
    **_all("it is a key of the block `domino`", "gru_hidden_dim", "emb_dim", "pure_draft_prefix_len", "shift_label"),
    **_all("it is a key of the block `dspark`", "sample_from_anchor", "markov_rank", "markov_head_type"),
    **_all("it is a key of the block `dspark`", "enable_confidence_head", "confidence_head_with_markov"),
}
_IN_ROPE = {
    "type": "write `rope_type` in `scaling`",
    "attn_factor": "write `attention_factor`",
    "mrope_section": "not for a draft: its positions are one-dimensional",
    "mrope_interleaved": "not for a draft: its positions are one-dimensional",
    "original_max_position": "write `original_max_position_embeddings`",
}
FOREIGN = {
    "": _ANYWHERE,
    "layout": {
        **_all(_ATTENTION, "num_attention_heads", "num_key_value_heads", "head_dim", "num_heads", "attention_bias"),
        **_all(_ATTENTION, "sliding_window", "is_causal", "qk_norm", "output_gate", "linear_attn_config"),
        **_all(_ATTENTION, "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        **_all(_ATTENTION, "short_conv_kernel_size", "gate_lower_bound", "context_state", "qk_head_dim"),
    },
    "attention": {
        **_all(_HEADS, "num_v_heads", "expand_v", "head_v_dim"),
        "conv_size": "write `short_conv_kernel_size`",
        "backend": _BACKEND,
    },
    "rope": {**_IN_ROPE, "partial_rotary_factor": "not for mla: `qk_rope_head_dim` says how many channels turn"},
    "scaling": _IN_ROPE,
}
RESERVED = {
    "layout": {"residual": "residual streams of the draft"},
    "attention": {"indexer": "sparse selection of keys"},
    "layer": {"mlp": "an MLP per layer"},
}
VALUES = {
    **_all("bfloat16", "bf16", "torch.bfloat16"),
    **_all("float16", "fp16", "half", "torch.float16"),
    **_all("float32", "fp32", "float", "torch.float32"),
    **_all("silu", "swish"),
    **_all("gelu_pytorch_tanh", "gelu_new", "gelu_tanh", "gelu_fast"),
    **_all("gqa", "mqa", "full", "full_attention", "sliding", "sliding_attention"),
    **_all("kda", "linear_attention", "kimi_delta_attention"),
    **_all("half", "neox", "rotate_half", "half_split", "split"),
    **_all("interleaved", "gptj", "interleave"),
    **_all("longrope", "su"),
    **_all("none", "off", "no", "false", "False", "null"),
}


def foreign_answer(word: str, scope: str) -> str | None:
    """Return what takes the place of a foreign key in a mapping of the kind `scope`, None when it is not foreign."""
    return FOREIGN.get(scope, {}).get(word) or FOREIGN[""].get(word)


def reserved_for(word: str, scope: str) -> str | None:
    """Return what a key is kept for in a mapping of the kind `scope`, None when it is not kept."""
    return RESERVED.get(scope, {}).get(word)


def foreign_value(word: str, known: tuple[str, ...]) -> str | None:
    """Return which of the `known` values other formats call `word`, if any."""
    meant = VALUES.get(word)
    return meant if meant in known else None
