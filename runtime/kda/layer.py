"""What stands around the core of a KDA layer: short convolutions before it, a gated norm behind it."""

import torch
from torch import Tensor, nn

from draftc.runtime.kda.math import convolve_rows, gate_rows
from draftc.runtime.kda.triton import misses_triton
from draftc.runtime.visibility import View, ViewError


def short_convolution(rows: Tensor, weight: Tensor, view: View) -> Tensor:
    """Causal depthwise convolution over time, then SiLU: `[M, T, P], [P, K] -> [M, T, P]`.

    y_t = silu(sum_i weight[:, i] * rows_{t-K+1+i}), rows before the first being zero: the last tap is the row itself.
    The backend that `view` names for the core brings its form of this: kernels, or plain tensor operations.
    Raises `ViewError` for a name that no backend has.
    """
    if view.backend == "kda_recurrent":
        return convolve_rows(rows, weight)
    if view.backend == "kda_block":
        return convolve_rows(rows, weight)
    if view.backend == "kda_fla":
        return convolve_rows(rows, weight)
    if view.backend == "kda_triton":
        return convolve_triton(rows, weight)
    if view.backend == "kda_gluon":
        return convolve_triton(rows, weight)
    raise ViewError(f"KDA backend {view.backend!r} is none of kda_recurrent, kda_block, kda_fla, kda_triton, kda_gluon")


def gated_norm(out: Tensor, gate: Tensor, weight: Tensor, eps: float, view: View) -> Tensor:
    """`rms_norm(out) * weight * sigmoid(gate)` over the last axis of `out` and `gate [M, T, h, d]`; `weight [d]`.

    Computed in at least float32 and rounded once, to the dtype of `out`, by the backend that `view` names for the core.
    Raises `ViewError` for a name that no backend has.
    """
    if view.backend == "kda_recurrent":
        return gate_rows(out, gate, weight, eps)
    if view.backend == "kda_block":
        return gate_rows(out, gate, weight, eps)
    if view.backend == "kda_fla":
        return gate_rows(out, gate, weight, eps)
    if view.backend == "kda_triton":
        return gate_triton(out, gate, weight, eps)
    if view.backend == "kda_gluon":
        return gate_triton(out, gate, weight, eps)
    raise ViewError(f"KDA backend {view.backend!r} is none of kda_recurrent, kda_block, kda_fla, kda_triton, kda_gluon")


def convolve_triton(rows: Tensor, weight: Tensor) -> Tensor:
    """`short_convolution` by one kernel forward and one backward, in every phase; plain where Triton is missing."""
    if misses_triton():
        return convolve_rows(rows, weight)
    from draftc.runtime.kda.triton_layer import convolve_tiles

    return convolve_tiles(rows, weight)


def gate_triton(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`gated_norm` by one kernel forward and one backward, in every phase; plain where Triton is missing."""
    if misses_triton():
        return gate_rows(out, gate, weight, eps)
    from draftc.runtime.kda.triton_layer import gate_tiles

    return gate_tiles(out, gate, weight, eps)


class ShortConvolution(nn.Module):
    """`short_convolution` with its weight `[P, K]`: P channels, K taps, no bias. `[M, T, P] -> [M, T, P]`."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, taps) * 0.02)

    def forward(self, rows: Tensor, view: View) -> Tensor:
        """Convolve `rows [M, T, P]` over time and apply SiLU; `view` names the backend."""
        return short_convolution(rows, self.weight, view)

    def extra_repr(self) -> str:
        """Channels and taps, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, taps={self.weight.shape[1]}"


class GatedRMSNorm(nn.Module):
    """`gated_norm` with its weight `[size]`: RMSNorm over each head times the sigmoid of a gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, out: Tensor, gate: Tensor, view: View) -> Tensor:
        """Normalise `out [M, T, h, size]` and gate it by `gate`, the same shape; `view` names the backend."""
        return gated_norm(out, gate, self.weight, self.eps, view)

    def extra_repr(self) -> str:
        """Size and epsilon, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
