"""Let a module of another library that rounds to float32 inside compute in float64."""

import inspect
from types import ModuleType

import pytest
import torch


class WideTorch:
    """`torch` for such a module: its `float32` and `float` are float64, everything else is torch's."""

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def without_kernels(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> None:
    """Let functions of `module` that a kernel package replaces where it is installed be transformers' own again."""
    for name in names:
        monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))


def widen(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Redirect every cast to float32 that `module` writes by name, and `Tensor.float` of a float64 tensor."""
    narrow = torch.Tensor.float
    monkeypatch.setattr(module, "torch", WideTorch())
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrow(x))
