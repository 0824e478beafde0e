"""The configuration of a bundle: what transformers' decoding reads, what the model reads, and the layout itself."""

import json
from collections.abc import Mapping

from draftc.compiler.families import family_form
from draftc.compiler.naming import names_of
from draftc.spec.layout import AttentionSpec, Kda, Layout
from draftc.spec.nodes import Value

LAYER_TYPES = ("full_attention", "sliding_attention", "linear_attention")


def config_values(layout: Layout) -> dict[str, Value]:
    """Return the fields of the configuration that describe the draft, in the order in which the class declares them."""
    return {
        "hidden_size": layout.hidden_size,
        "target_hidden_size": layout.target.hidden_size,
        "context_width": layout.context_width,
        "num_hidden_layers": len(layout.layers),
        "vocab_size": layout.target.vocab_size,
        "draft_vocab_size": layout.draft_vocab_size,
        "rms_norm_eps": layout.rms_norm_eps,
        "block_size": layout.block_size,
        "mask_token_id": layout.mask_token_id,
        "target_layer_ids": list(layout.target_layer_ids),
        "layer_types": [layer_type(layer.attention) for layer in layout.layers],
        "sliding_window": widest_window(layout),
        "attention_dropout": layout.attention_dropout,
        "input_embedding_scale": layout.input_embedding_scale,
        "output_multiplier": layout.output_multiplier,
        "final_logit_softcapping": layout.final_logit_softcapping,
        "initializer_range": layout.initializer_range,
        "max_position_embeddings": layout.max_position_embeddings,
        **family_form(layout).fields,
    }


def config_json(layout: Layout, resolved: Mapping[str, Value], version: str) -> str:
    """Return the text of `config.json`, byte for byte what `save_pretrained` of the loaded draft writes.

    `dflash_config` repeats what readers of the public formats look for; `draftc` holds the version and the resolved
    layout, since `save_pretrained` keeps no other file.
    """
    names = names_of(layout.name)
    nested: dict[str, Value] = {
        "block_size": layout.block_size,
        "mask_token_id": layout.mask_token_id,
        "target_layer_ids": list(layout.target_layer_ids),
        **family_form(layout).nested,
    }
    auto_map: dict[str, Value] = {
        "AutoConfig": f"{names.configuration}.{names.config_class}",
        "AutoModel": f"{names.modeling}.{names.model_class}",
    }
    values: dict[str, Value] = {
        **config_values(layout),
        "architectures": [names.model_class],
        "auto_map": auto_map,
        "dflash_config": nested,
        "draftc": {"version": version, "layout": dict(resolved)},
        "dtype": layout.dtype,
        "model_type": names.model_type,
        "num_target_layers": layout.target.num_hidden_layers,
        "tie_word_embeddings": False,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def layer_type(spec: AttentionSpec) -> str:
    """The word that transformers makes a layer's cache from."""
    if isinstance(spec, Kda):
        return "linear_attention"
    return "full_attention" if spec.sliding_window is None else "sliding_attention"


def widest_window(layout: Layout) -> int | None:
    """The widest window of the stack, None when no layer has one: what every sliding layer's cache must keep."""
    windows = [spec.sliding_window for spec in layout.attentions.values() if spec.sliding_window is not None]
    return max(windows, default=None)
