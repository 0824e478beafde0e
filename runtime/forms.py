"""Decoding forms: other classes for the parameters of an attention, cheaper where a step has few queries.

A form derives from the class that trains and brings a forward of its own; names, shapes and what it keeps between steps
are the same. An attention takes a form by taking its class, so parameters, hooks, flags, adapters and the names of a
state dict stay where they are, and a cache that one form began another can continue.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import nn

# They run heads of any width; others were chosen for the widths of one form.
ANY_WIDTH = ("eager", "sdpa")
# What a form multiplies by in another order than the layer does, by its name in the attention.
REGROUPED = "kv_b_proj"


def keeps_plain(attention: nn.Module, backend: str, chosen: str) -> str | None:
    """Why `attention` decodes in the form that it trains in, run by `backend` where `chosen` was; None: it need not.

    A form reads a weight where the plain one calls the layer around it: an adapter or a quantised layer in its place
    would be left out.
    """
    if backend not in (chosen, *ANY_WIDTH):
        return f"backend {backend} was forced, and the decoding form was made for {', '.join((chosen, *ANY_WIDTH))}"
    layer = getattr(attention, REGROUPED)
    if type(layer) is not nn.Linear or not layer.weight.is_floating_point():
        return (
            f"its {REGROUPED} is a {type(layer).__name__} of {layer.weight.dtype}, whose weight alone says too little"
        )
    return None


class DecodingForms(nn.Module):
    """The part of a draft model that gives its attentions the form of each phase.

    `decoding_forms` maps, for each device type, classes that train to those that decode. A forward settles the forms
    itself, except within a region that torch compiles, which runs them as it finds them: prepare first.
    """

    decoding_forms: ClassVar[Mapping[str, Mapping[type, type]]] = {}
    backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]]
    layers: nn.ModuleList

    def layer_backends(self, phase: str, device: str) -> tuple[str, ...]:
        """The backend of every layer in `phase` on `device`; a model adds overrides."""
        return self.backends[phase, device]

    def prepare_decoding(self, device: str | None = None) -> tuple[str, ...]:
        """Give every attention its decoding form on `device` (by default where the parameters lie).

        Returns why some keep the form that they train in, one line for each. `train()` undoes it.
        """
        place = device or next(self.parameters()).device.type
        return self.settle_forms("decoding", place, self.layer_backends("decoding", place))

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as every module does; with training come the forms that train."""
        if mode and hasattr(self, "layers"):
            self.settle_forms("training", "cpu", self.layer_backends("training", "cpu"))
        return super().train(mode)

    def settle_forms(self, phase: str, device: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Give every attention its form in `phase` on `device`, where the backends `names` run the layers.

        Returns why attentions that have a decoding form do not take it. Does nothing while torch compiles.
        """
        if not self.decoding_forms or torch.compiler.is_compiling():
            return ()
        plain = {form: kind for forms in self.decoding_forms.values() for kind, form in forms.items()}
        forms = self.decoding_forms.get(device, {}) if phase == "decoding" else {}
        chosen, reasons = self.backends.get((phase, device), names), []
        for index, (layer, name, best) in enumerate(zip(self.layers, names, chosen, strict=True)):
            attention: Any = layer.self_attn
            kind = plain.get(type(attention), type(attention))
            reason = keeps_plain(attention, name, best) if kind in forms else None
            if reason is not None:
                reasons.append(f"layer {index}: {reason}")
            wanted = forms.get(kind, kind) if reason is None else kind
            if type(attention) is not wanted:
                attention.__class__ = wanted
        return tuple(reasons)
