"""Narrow arithmetic over float32 weights, by the rule of FSDP2's `MixedPrecisionPolicy` for sharded models."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn


class Casts:
    """Copies of the parameters of a module in another dtype, through which gradients reach the parameters.

    Autocast would choose a dtype for each operation, so that a draft would train in other numbers than it decodes in.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.copies = [
            (owner, {name: parameter.to(dtype) for name, parameter in owner.named_parameters(recurse=False)})
            for owner in module.modules()
            if owner._parameters
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module compute with the copies; the parameters return in any case."""
        kept = [(owner, dict(owner._parameters)) for owner, _ in self.copies]
        try:
            for owner, copies in self.copies:
                owner._parameters.update(cast("dict[str, nn.Parameter | None]", copies))  # torch reads any tensor there
            yield
        finally:
            for owner, parameters in kept:
                owner._parameters.update(parameters)
