"""Configuration of the draft model qwen3-8b-dflash, compiled by draftc 0.1.0 from layout.yaml."""

from dataclasses import field
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


class DraftConfig(PreTrainedConfig):
    """Facts of a draft that outlive its code: widths, taps, slots, and what a cache is made from.

    `target_layer_ids` are 0-based: the output of that layer of the target, `hidden_states[i + 1]`. `context_width` is
    the width of all taps side by side, their number times `target_hidden_size` unless stated. `layer_types` are
    transformers' words, so that `DynamicCache(config=...)` gives every layer what it keeps; recurrent layers of both
    kinds are `linear_attention`. `sliding_window` is the widest window of the stack. `draft_vocab_size` below
    `vocab_size` means that the draft owns its output head. `draftc` holds the compiler's version and the resolved
    layout.
    """

    model_type = "draftc_draft"

    hidden_size: int = 0
    target_hidden_size: int = 0  # 0 in this field and the two like it: what follows from the others
    context_width: int = 0
    num_hidden_layers: int = 0
    vocab_size: int = 0
    draft_vocab_size: int = 0
    rms_norm_eps: float = 1e-6
    block_size: int = 0
    mask_token_id: int | None = None
    target_layer_ids: list[int] | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    attention_dropout: float = 0.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    initializer_range: float = 0.02
    max_position_embeddings: int = 0
    draftc: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill what follows from other fields."""
        if self.target_layer_ids is None:
            self.target_layer_ids = []
        if not self.target_hidden_size:
            self.target_hidden_size = self.hidden_size
        if not self.context_width:
            self.context_width = self.target_hidden_size * len(self.target_layer_ids)
        if not self.draft_vocab_size:
            self.draft_vocab_size = self.vocab_size
        if self.layer_types is None:
            self.layer_types = ["full_attention"] * self.num_hidden_layers
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        """What `config.json` holds: without transformers' version, so that loading and saving changes no byte."""
        return {key: value for key, value in super().to_diff_dict().items() if key != "transformers_version"}


@strict
class Qwen3_8bDflashDraftConfig(DraftConfig):
    """Configuration of qwen3-8b-dflash; defaults are the values of its layout."""

    model_type = "draftc_qwen3_8b_dflash"
    _auto_class = "AutoConfig"

    hidden_size: int = 4096
    target_hidden_size: int | None = 4096
    context_width: int | None = 20480
    num_hidden_layers: int = 5
    vocab_size: int = 151936
    draft_vocab_size: int | None = 151936
    rms_norm_eps: float = 1e-06
    block_size: int = 16
    mask_token_id: int | None = 151669
    target_layer_ids: list[int] | None = field(default_factory=lambda: [1, 9, 17, 25, 33])
    layer_types: list[str] | None = field(
        default_factory=lambda: [
            "full_attention",
            "full_attention",
            "full_attention",
            "full_attention",
            "full_attention",
        ],
    )
    sliding_window: int | None = None
    attention_dropout: float = 0.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    initializer_range: float = 0.02
    max_position_embeddings: int = 40960
