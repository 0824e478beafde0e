"""The target's hidden states while it decodes: the layers are those that training listens to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from draftc.runtime.generation.errors import DraftMismatchError
from draftc.runtime.train.errors import TrainingError
from draftc.runtime.train.taps import Taps, decoder_of, layers_of, listening


@dataclass(frozen=True, slots=True, eq=False)
class TapListener:
    """Where a target's states are heard: `places[i]` is its layer i, the last one its decoder when that is normed."""

    taps: Taps
    places: nn.ModuleList

    @contextmanager
    def hearing(self) -> Iterator[dict[int, Tensor]]:
        """What the tapped layers return, `[B, T, H]` by number, while the target runs inside."""
        heard: dict[int, Tensor] = {}
        with listening(self.places, self.taps.layer_ids, heard):
            yield heard

    def joined(self, heard: dict[int, Tensor]) -> Tensor:
        """`heard` side by side as the draft reads it, `[B, T, W]`."""
        return torch.cat([self.taps.flat(heard[layer_id]) for layer_id in self.taps.layer_ids], dim=-1)


def text_config(target: Any) -> Any:
    """The configuration of the target's language model, also of one that reads images."""
    return target.config.get_text_config(decoder=True)


def tap_listener(target: Any, taps: Taps) -> TapListener:
    """Find the layers that `taps` names. Raises `DraftMismatchError` where the target has no such layer."""
    decoder, count = decoder_of(target), text_config(target).num_hidden_layers
    deepest = max(taps.layer_ids, default=-1)
    if deepest >= count:
        raise DraftMismatchError(
            f"the draft reads layer {deepest}, and the target has {count}, counted from 0",
            "give the target that the draft was made for",
        )
    try:
        layers: list[nn.Module] = list(layers_of(decoder, count))
    except TrainingError as error:
        raise DraftMismatchError(str(error), "use a causal language model of transformers, not a wrapper") from None
    if taps.final_norm:
        layers[-1] = decoder
    return TapListener(taps, nn.ModuleList(layers))
