"""Whether a draft and a target belong together, asked before the first step."""

from typing import Any

from draftc.runtime.generation.errors import DraftMismatchError, UnfilledVocabularyError
from draftc.runtime.generation.taps import text_config
from draftc.runtime.train.taps import Taps


def require_fit(draft: Any, target: Any) -> None:
    """Raise `DraftMismatchError` when `draft` does not fit `target`: kind, width, vocabulary, dtype, device.

    Raises `UnfilledVocabularyError` when the draft's own vocabulary has no tokens yet.
    """
    if getattr(target.config, "is_encoder_decoder", False) or target.get_output_embeddings() is None:
        raise DraftMismatchError(f"{type(target).__name__} is no causal language model", "load the target as one")
    require_widths_and_vocabulary(draft, target)
    require_filled_maps(draft)
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


def require_filled_maps(draft: Any) -> None:
    """Raise `UnfilledVocabularyError` unless the maps `d2t` and `t2d` of a reduced vocabulary name as many tokens.

    Maps start as zeros, by which every row of the draft's head would be a token next to its own number.
    """
    if not draft.owns_head or draft.t2d.is_meta:
        return
    wanted, named = draft.config.draft_vocab_size, int(draft.t2d.sum())
    if named != wanted or not bool(draft.t2d[draft.token_ids().clamp(0, draft.t2d.numel() - 1)].all()):
        raise UnfilledVocabularyError(
            f"the draft has {wanted} of the target's {draft.config.vocab_size} tokens, and its maps d2t and t2d do not "
            f"say which: t2d names {named}",
            "train the draft, which takes the tokens that occur most often in its data, or load weights that hold both "
            "maps; `vocabulary_maps` makes them from token ids",
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
