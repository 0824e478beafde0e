"""The states of a frozen target that a draft reads: only the tapped layers are listened to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftc.runtime.train.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Taps:
    """Which states a draft reads: outputs of decoder layers `layer_ids`, 0-based, side by side in that order.

    `final_norm` says whether the last layer is read behind the target's final norm. A target of several residual
    streams `[B, S, m, W]` gives their mean, or all of them with `keeps_streams`.
    """

    layer_ids: tuple[int, ...]
    final_norm: bool = False
    keeps_streams: bool = False

    def flat(self, states: Tensor) -> Tensor:
        """One state a token, `[B, S, W]` or `[B, S, m·W]`."""
        if states.ndim == 3:
            return states
        return states.flatten(2) if self.keeps_streams else states.mean(2)


@dataclass(frozen=True, slots=True)
class Features:
    """What the target says of D documents: `taps [D, S, T·W]`, and the states before its head, `final [D, S, H]`."""

    taps: Tensor
    final: Tensor | None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Features":
        """The same on `device`."""
        final = None if self.final is None else self.final.to(device, non_blocking=non_blocking)
        return Features(self.taps.to(device, non_blocking=non_blocking), final)


def decoder_of(target: PreTrainedModel) -> PreTrainedModel:
    """The stack of `target` below its output head."""
    decoder: Any = target.get_decoder()
    base: Any = target.base_model
    found: PreTrainedModel = base if decoder is None or decoder is target else decoder
    return found


def layers_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The `count` layers of `decoder`. Raises `TrainingError` when there is no list of that many."""
    lists = [module for module in decoder.children() if isinstance(module, nn.ModuleList) and len(module) == count]
    if len(lists) != 1:
        raise TrainingError(f"{type(decoder).__name__} shows no single list of {count} layers to tap")
    return lists[0]


@contextmanager
def listening(layers: nn.ModuleList, layer_ids: tuple[int, ...], heard: dict[int, Tensor]) -> Iterator[None]:
    """Put the output of each of `layer_ids` into `heard` while the target runs."""

    def listener(layer_id: int) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...]], None]:
        def hear(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            heard[layer_id] = output if isinstance(output, Tensor) else output[0]

        return hear

    hooks = [layers[layer_id].register_forward_hook(listener(layer_id)) for layer_id in layer_ids]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def tapped(target: PreTrainedModel, taps: Taps, input_ids: Tensor, attention_mask: Tensor) -> Features:
    """Run the frozen `target` over `input_ids [D, S]`, padded on the right, and return what a draft reads.

    Raises `TrainingError` for a layer that the target does not have.
    """
    decoder = decoder_of(target)
    count = decoder.config.get_text_config().num_hidden_layers
    beyond = [layer_id for layer_id in taps.layer_ids if layer_id >= count]
    if beyond:
        raise TrainingError(f"layer {beyond[0]} is tapped; {type(target).__name__} has {count}")
    heard: dict[int, Tensor] = {}
    with listening(layers_of(decoder, count), taps.layer_ids, heard):
        final = decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    if taps.final_norm and count - 1 in heard:
        heard[count - 1] = final
    states = torch.cat([taps.flat(heard[layer_id]) for layer_id in taps.layer_ids], dim=-1)
    return Features(states, final)
