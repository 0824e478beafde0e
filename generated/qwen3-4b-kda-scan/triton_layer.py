"""The kernels around KDA's core as differentiable functions: sizes, launches, autograd, operators for compilation."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_convolution import convolution_backward, convolution_forward
from .triton_norm import norm_backward, norm_forward

CONVOLUTION_COLS = 256  # channels of a program: four a thread of two warps
CONVOLUTION_WARPS = 2
CONVOLUTION_AHEAD = 2  # rows on their way while one is at work
CONVOLUTION_WALKS = 64  # programs of backward for each group of channels; as many sums of dw are kept
PIECE_ROWS = 32  # rows of a sequence that one program walks
NORM_VALUES = 2048  # of a tile: 16 a thread of four warps
NORM_WARPS = 4
NORM_WALKS = 1024  # programs of backward
LAYER_NAMESPACE = re.sub(r"\W", "_", __name__)


class LayerKernel(NamedTuple):
    """A pair of kernels as functions of tensors, the first of which has the form of the result, then of numbers.

    `forward(*tensors, *numbers)` returns the result, `backward(*tensors, dout, *numbers)` a gradient for each tensor.
    """

    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    forward: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor, ...]]


class WalkSizes(NamedTuple):
    """How M sequences of T rows are walked: sequences in `pieces` each of `length` rows, channels in `groups`."""

    T: int
    P: int
    pieces: int
    length: int
    groups: int
    all_pieces: int


def walk_sizes(rows: Tensor) -> WalkSizes:
    """Sizes for `rows [M, T, P]`."""
    blocks, count, channels = rows.shape
    pieces = -(-count // PIECE_ROWS)
    return WalkSizes(count, channels, pieces, -(-count // pieces), -(-channels // CONVOLUTION_COLS), blocks * pieces)


def launch_convolution(rows: Tensor, weight: Tensor) -> Tensor:
    """Forward of `convolve_tiles`, contiguous arguments."""
    out = torch.empty_like(rows)
    if rows.numel():
        sizes = walk_sizes(rows)
        convolution_forward[(sizes.all_pieces, sizes.groups)](
            rows, weight, out, sizes.T, sizes.P, sizes.pieces, sizes.length,
            K=weight.shape[1], AHEAD=CONVOLUTION_AHEAD, COLS=CONVOLUTION_COLS, num_warps=CONVOLUTION_WARPS,
        )  # fmt: skip
    return out


def launch_convolution_backward(rows: Tensor, weight: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `convolve_tiles`, contiguous arguments."""
    if not rows.numel():
        return torch.empty_like(rows), torch.zeros_like(weight)
    sizes, taps = walk_sizes(rows), weight.shape[1]
    walks = min(sizes.all_pieces, CONVOLUTION_WALKS)
    drows, partial = torch.empty_like(rows), weight.new_empty(walks, taps, sizes.P, dtype=torch.float32)
    convolution_backward[(walks, sizes.groups)](
        rows, weight, dout, drows, partial, sizes.T, sizes.P, sizes.all_pieces, sizes.pieces, sizes.length,
        K=taps, AHEAD=CONVOLUTION_AHEAD, COLS=CONVOLUTION_COLS, num_warps=CONVOLUTION_WARPS,
    )  # fmt: skip
    return drows, partial.sum(0).t().to(weight.dtype, memory_format=torch.contiguous_format)


def norm_tile(width: int) -> dict[str, int]:
    """Rows of a tile and channels, padded to a power of two, for heads of `width` channels."""
    cols = 1 << (width - 1).bit_length()
    return {"ROWS": max(NORM_VALUES // cols, 1), "COLS": cols}


def launch_norm(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Forward of `gate_tiles`, contiguous arguments."""
    made, width = torch.empty_like(out), weight.shape[0]
    tile, rows = norm_tile(width), out.numel() // width
    if rows:
        grid = (-(-rows // tile["ROWS"]),)
        norm_forward[grid](out, gate, weight, made, rows, width, eps, **tile, num_warps=NORM_WARPS)
    return made


def launch_norm_backward(
    out: Tensor, gate: Tensor, weight: Tensor, dout: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `gate_tiles`, contiguous arguments."""
    grad, dgate, width = torch.empty_like(out), torch.empty_like(gate), weight.shape[0]
    tile, rows = norm_tile(width), out.numel() // width
    if not rows:
        return grad, dgate, torch.zeros_like(weight)
    tiles = -(-rows // tile["ROWS"])
    partial = weight.new_empty(min(tiles, NORM_WALKS), width, dtype=torch.float32)
    norm_backward[(len(partial),)](
        out, gate, weight, dout, grad, dgate, partial, tiles, rows, width, eps, **tile, num_warps=NORM_WARPS
    )
    return grad, dgate, partial.sum(0).to(weight.dtype)


class LayerFunction(torch.autograd.Function):
    """A `LayerKernel` in eager mode. Arguments: the kernel, then its own."""

    @staticmethod
    def forward(ctx: Any, kernel: LayerKernel, *inputs: Any) -> Tensor:
        """Keep the tensors, and nothing that was made on the way."""
        count = len(kernel.tensors)
        ctx.save_for_backward(*inputs[:count])
        ctx.kernel, ctx.numbers = kernel, inputs[count:]
        return kernel.forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """One gradient per argument; None for what is no tensor."""
        grads = ctx.kernel.backward(*ctx.saved_tensors, dout.contiguous(), *ctx.numbers)
        return None, *grads, *(None for _ in ctx.numbers)


def layer_operator(name: str, kernel: LayerKernel) -> Callable[..., Tensor]:
    """Register `kernel` as an opaque operator with gradients, which compilation can trace, and return it.

    The names hold the module's: every bundle has operators of its own.
    """
    count = len(kernel.tensors)
    tensors = [f"Tensor {each}" for each in kernel.tensors]
    numbers = [f"float {each}" for each in kernel.numbers]

    def like_tensors(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(each) for each in inputs[:count])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:count])
        ctx.numbers = inputs[count:]

    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        grads = gradients(*ctx.saved_tensors, dout.contiguous(), *ctx.numbers)
        return *grads, *(None for _ in ctx.numbers)

    operator = torch.library.custom_op(
        f"{LAYER_NAMESPACE}::{name}",
        kernel.forward,
        mutates_args=(),
        schema=f"({', '.join([*tensors, *numbers])}) -> Tensor",
    )
    gradients = torch.library.custom_op(
        f"{LAYER_NAMESPACE}::{name}_backward",
        kernel.backward,
        mutates_args=(),
        schema=f"({', '.join([*tensors, 'Tensor dout', *numbers])}) -> ({', '.join(['Tensor'] * count)})",
    )
    operator.register_fake(lambda *inputs: torch.empty_like(inputs[0]))
    gradients.register_fake(like_tensors)
    operator.register_autograd(backward, setup_context=keep)
    return operator


CONVOLUTION = LayerKernel(("rows", "weight"), (), launch_convolution, launch_convolution_backward)
CONVOLUTION_OPERATOR = layer_operator("short_convolution", CONVOLUTION)
GATED_NORM = LayerKernel(("out", "gate", "weight"), ("eps",), launch_norm, launch_norm_backward)
GATED_NORM_OPERATOR = layer_operator("gated_norm", GATED_NORM)


def run_kernel(kernel: LayerKernel, operator: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`kernel` on contiguous copies of its tensors; nothing is kept where no gradient will be asked for."""
    given = [x.contiguous() if isinstance(x, Tensor) else x for x in inputs]
    if torch.compiler.is_compiling():
        return operator(*given)
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given):
        return LayerFunction.apply(kernel, *given)
    return kernel.forward(*given)


def convolve_tiles(rows: Tensor, weight: Tensor) -> Tensor:
    """`short_convolution` by the kernels of `triton_convolution`: `[M, T, P], [P, K] -> [M, T, P]`."""
    return run_kernel(CONVOLUTION, CONVOLUTION_OPERATOR, rows, weight)


def gate_tiles(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`gated_norm` by the kernels of `triton_norm`: `[.., d], [.., d], [d] -> [.., d]`."""
    return run_kernel(GATED_NORM, GATED_NORM_OPERATOR, out, gate, weight, eps)
