"""The hidden states of a target that a draft reads, taken by hooks on the tapped layers alone."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from draftc.runtime.generation.errors import DraftMismatchError


def text_config(target: Any) -> Any:
    """The configuration of the target's language model, also of one that reads images."""
    return target.config.get_text_config(decoder=True)


def target_layers(target: Any) -> nn.ModuleList:
    """The decoder layers of `target`. Raises `DraftMismatchError` when it has no list of as many as it states."""
    count = text_config(target).num_hidden_layers
    for module in target.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise DraftMismatchError(
        f"{type(target).__name__} has no list of its {count} layers to take hidden states from",
        "use a causal language model of transformers, not a wrapper around one",
    )


def first_tensor(output: Any) -> Tensor:
    """The hidden states of what a layer or a decoder returns."""
    if isinstance(output, Tensor):
        return output
    return output[0]


class Taps:
    """Outputs of the target's layers `layer_ids`, kept while the context is open.

    Counted from 0, as `hidden_states[i + 1]` of transformers; that of the last layer is `post_norm`, behind the final
    norm, or `pre_norm`. Raises `DraftMismatchError` for a layer that the target does not have.
    """

    def __init__(self, target: Any, layer_ids: Sequence[int], final_tap: str = "post_norm") -> None:
        layers = target_layers(target)
        deepest = max(layer_ids, default=-1)
        if deepest >= len(layers):
            raise DraftMismatchError(
                f"the draft reads layer {deepest}, and the target has {len(layers)}, counted from 0",
                "give the target that the draft was made for",
            )
        self.sources = [
            target.get_decoder() if index == len(layers) - 1 and final_tap == "post_norm" else layers[index]
            for index in layer_ids
        ]
        self.found: list[Tensor | None] = []
        self.hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self.found = [None] * len(self.sources)
        for number, module in enumerate(self.sources):
            self.hooks.append(module.register_forward_hook(self.keeper(number)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def keeper(self, number: int) -> Any:
        """A hook that keeps what its module returns as tap `number`."""

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001 - signature of forward hooks
            self.found[number] = first_tensor(output)

        return keep

    def read(self) -> Tensor:
        """The taps of the last call side by side, `[B, T, sum of widths]`; more than one stream is flattened."""
        kept = [tap.flatten(2) for tap in self.found if tap is not None]
        self.found = [None] * len(self.sources)
        return torch.cat(kept, dim=-1)
