"""Whether a draft and a target belong together, asked before the first step."""

from typing import Any

from draftc.runtime.generation.errors import DraftMismatchError
from draftc.runtime.generation.taps import text_config
from draftc.runtime.train.taps import Taps


def require_fit(draft: Any, target: Any) -> None:
    """Raise `DraftMismatchError` when `draft` does not fit `target`: kind, width, vocabulary, dtype, device."""
    if getattr(target.config, "is_encoder_decoder", False) or target.get_output_embeddings() is None:
        raise DraftMismatchError(f"{type(target).__name__} is no causal language model", "load the target as one")
    require_widths_and_vocabulary(draft, target)
    require_same_place(draft, target)


def require_widths_and_vocabulary(draft: Any, target: Any) -> None:
    """Raise `DraftMismatchError` when the two have other widths or vocabularies."""
    config, table = draft.config, target.get_input_embeddings().weight
    way_out = "give the target that the draft was made for"
    if config.target_hidden_size != table.shape[1]:
        raise DraftMismatchError(
            f"the draft is for a target of width {config.target_hidden_size}; this one is {table.shape[1]} wide",
            way_out,
        )
    vocabulary = text_config(target).vocab_size
    if config.vocab_size != vocabulary:
        raise DraftMismatchError(
            f"the draft is for a vocabulary of {config.vocab_size} tokens; this target has {vocabulary}", way_out
        )
    if not 0 <= config.mask_token_id < table.shape[0]:
        raise DraftMismatchError(
            f"mask_token_id {config.mask_token_id} has no row among the {table.shape[0]} embeddings of the target",
            way_out,
        )


def require_same_place(draft: Any, target: Any) -> None:
    """Raise `DraftMismatchError` when the two differ in dtype or device."""
    own, theirs = draft.fc.weight, target.get_input_embeddings().weight
    if own.dtype != theirs.dtype:
        raise DraftMismatchError(
            f"the draft computes in {own.dtype}, the target in {theirs.dtype}",
            f"load the draft with dtype={theirs.dtype}",
        )
    if own.device != theirs.device:
        raise DraftMismatchError(
            f"the draft is on {own.device}, the target on {theirs.device}", f'move it: draft.to("{theirs.device}")'
        )


def taps_of_draft(draft: Any) -> Taps:
    """The states of the target that `draft` reads, as its layout, which its configuration holds, states them."""
    layout = (draft.config.draftc or {}).get("layout") or {}
    return Taps(
        tuple(draft.config.target_layer_ids),
        final_norm=(layout.get("final_tap") or "post_norm") == "post_norm",
        keeps_streams=layout.get("target_stream_contraction") == "none",
    )
