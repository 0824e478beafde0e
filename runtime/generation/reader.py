"""The target's side of a round: read tokens, give logits and hidden states, forget what was rejected."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from draftc.runtime.generation.alignment import Alignment, require_movable
from draftc.runtime.generation.errors import StatefulTargetError
from draftc.runtime.generation.taps import tap_listener
from draftc.runtime.train.taps import Taps

WAY_OUT = (
    "use a target with full or sliding attention only, decode it without a draft, or serve the bundle on an engine that"
    " keeps copies of states, such as SGLang or vLLM"
)


def require_stateless(target: Any) -> None:
    """Raise `StatefulTargetError` for a target that transformers knows to keep states which cannot be cropped."""
    if getattr(target, "_is_stateful", False):
        raise StatefulTargetError(f"{type(target).__name__} keeps states that cannot be rolled back", WAY_OUT)


class TargetReader:
    """A target and its cache for a batch of prompts, `pads[r]` rows of padding on the left of row r."""

    def __init__(self, target: Any, taps: Taps, pads: Sequence[int]) -> None:
        require_stateless(target)
        self.target = target
        self.listener = tap_listener(target, taps)
        self.alignment = Alignment(pads)
        self.cache = DynamicCache(config=target.config)
        self.cache.activate_past_recording()
        self.takes = inspect.signature(target.forward).parameters

    def read(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """Read `tokens [B, n]`: float32 logits `[B, keep, V]` of the last ones, and the taps `[B, n, W]` of all.

        Raises `StatefulTargetError` when the first call shows a cache that cannot be cropped, `GenerationError` when a
        batch needs rows to move and they cannot.
        """
        fresh, device = tokens.shape[1], tokens.device
        is_first = self.alignment.total == 0
        inputs: dict[str, Any] = {
            "attention_mask": self.alignment.mask(fresh, [0] * len(self.alignment.pads), 0, device),
            "cache" if "cache" in self.takes else "past_key_values": self.cache,
            "use_cache": True,
        }
        if "position_ids" in self.takes:
            inputs["position_ids"] = self.alignment.positions(fresh, device)
        if "logits_to_keep" in self.takes:
            inputs["logits_to_keep"] = keep
        with self.listener.hearing() as heard:
            output = self.target(input_ids=tokens, **inputs)
        if is_first:
            self.require_croppable(tokens.shape[0])
        return output.logits[:, -keep:].float(), self.listener.joined(heard)

    def require_croppable(self, batch: int) -> None:
        """Raise unless the cache, which has been written, can do what rounds of `batch` rows need."""
        if not self.cache.is_croppable:
            kinds = sorted({type(layer).__name__ for layer in self.cache.layers if not layer.is_croppable})
            raise StatefulTargetError(f"the target's cache keeps {', '.join(kinds)}, which cannot be cropped", WAY_OUT)
        if batch > 1:
            require_movable(self.cache)

    def settle(self, fresh: int, behind: Sequence[int], dropped: int) -> None:
        """Keep the first `fresh` of the rows just read, without the last `behind[r]` of them for row r."""
        self.alignment.settle(self.cache, fresh, behind, dropped)

    def select(self, kept: Sequence[int], device: torch.device) -> None:
        """Keep the rows `kept` of the batch only."""
        self.alignment.select(self.cache, kept, device)
