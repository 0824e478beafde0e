"""Root mean square normalisation."""

import torch.nn.functional as F
from torch import Tensor, nn, ones


class RMSNorm(nn.Module):
    """RMSNorm over the last axis (arXiv:1910.07467), as transformers' Qwen3 computes it.

    Statistics are taken in at least float32; the result is cast back to the dtype of the input before the weight
    multiplies it. `[..., size] -> [..., size]`.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(ones(size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise `hidden [..., size]`."""
        return self.weight * F.rms_norm(hidden, self.weight.shape, eps=self.eps)

    def extra_repr(self) -> str:
        """Size and epsilon, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
