"""KDA by the Triton kernels, as one differentiable function: sizes, launches, autograd, operators for compilation."""

import re
from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_backward import blocks_backward
from .triton_forward import blocks_forward

LEAST_TILE = 16  # rows: the least that a matrix product of the kernels takes
BOUND_LINE = 16  # rows measured from one line; e^(8 bound) must be a float32
FORWARD_COLS = 64  # channels at work at a time; what fits the registers of one warp
BACKWARD_COLS = 32
NAMESPACE = re.sub(r"\W", "_", __name__)


class TileSizes(NamedTuple):
    """How M blocks of T rows lie in tiles; fields in capitals are the constants of the kernels.

    A tile holds TILE rows: TILE // SPAN blocks, each padded to SPAN rows.
    """

    blocks: int
    tiles: int
    T: int
    SPAN: int
    TILE: int
    HEADS: int
    WIDTH: int

    @property
    def is_whole(self) -> bool:
        """No tile has a row that is padding."""
        return self.T == self.SPAN and self.blocks % (self.TILE // self.SPAN) == 0


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()


def tile_sizes(q: Tensor, from_state: bool) -> TileSizes:
    """Tiles of `q [M, T, h, d]`; a block that starts from a state has a tile of its own."""
    blocks, rows, heads, width = q.shape
    padded = power_of_two(rows)
    tile = max(padded, LEAST_TILE)
    span = tile if from_state else padded
    return TileSizes(blocks, -(-blocks * span // tile), rows, span, tile, heads, width)


def constants(sizes: TileSizes, like: Tensor, lower_bound: float | None, from_state: bool) -> dict[str, object]:
    """What the kernels are compiled for."""
    return {
        **{name: value for name, value in sizes._asdict().items() if name.isupper()},
        "LINE": min(sizes.SPAN, BOUND_LINE) if lower_bound is not None else 1,
        "BOUNDED": lower_bound is not None,
        "WHOLE": sizes.is_whole,
        "FROM_STATE": from_state,
        **product_constants(like),
    }


def product_constants(like: Tensor) -> dict[str, object]:
    """How the kernels multiply values of the dtype of `like`: bfloat16 as it is, float16 as tf32, float32 as three."""
    return {
        "HALF": like.dtype == torch.bfloat16,
        "PRECISION": "tf32" if like.dtype != torch.float32 else "tf32x3",
    }


def operand_dtype(like: Tensor) -> torch.dtype:
    """What operands of those products are kept in."""
    return torch.bfloat16 if like.dtype == torch.bfloat16 else torch.float32


def tile_warps(like: Tensor) -> int:
    """Warps of a program that works on one tile of 16 rows."""
    return 1 if like.dtype == torch.bfloat16 else 2


def warps(sizes: TileSizes, like: Tensor, is_heavy: bool) -> int:
    """Warps of a program: one for a tile of 16 rows; twice that for 32 rows, for wide operands, for a heavy kernel."""
    return sizes.TILE // LEAST_TILE * tile_warps(like) * (2 if is_heavy else 1)


def saved_tensors(sizes: TileSizes, like: Tensor, tiles: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for X, Z `[tiles, h, R, R]`, rounded as the products of backward round them, and both norms."""
    inverses = like.new_empty(tiles, sizes.HEADS, sizes.TILE, sizes.TILE, dtype=operand_dtype(like))
    return inverses, torch.empty_like(inverses), like.new_empty(tiles, sizes.HEADS, 2, sizes.TILE, dtype=torch.float32)


def saved_shapes(*inputs: Any) -> tuple[Tensor, ...]:
    """`saved_tensors` of a call of `kda_blocks`."""
    sizes = tile_sizes(inputs[0], inputs[7] is not None)
    return saved_tensors(sizes, inputs[0], sizes.tiles)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
    state: Tensor | None, lower_bound: float | None, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """O like `v`, and X, Z, norms for backward, empty unless `save`. Arguments of `kda`, contiguous."""
    sizes = tile_sizes(q, state is not None)
    out = torch.empty_like(v)
    inverses, mixings, norms = saved_tensors(sizes, q, sizes.tiles if save else 0)
    blocks_forward[(sizes.tiles * sizes.HEADS,)](
        q, k, v, decay, beta, A_log, dt_bias, out if state is None else state, out, inverses, mixings, norms,
        sizes.blocks, sizes.WIDTH**-0.5, lower_bound or 0.0,
        **constants(sizes, q, lower_bound, state is not None), COLS=gcd(sizes.WIDTH, FORWARD_COLS), SAVE=save,
        num_warps=warps(sizes, q, state is not None),
    )  # fmt: skip
    return out, inverses, mixings, norms


def launch_backward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
    state: Tensor | None, inverses: Tensor, mixings: Tensor, norms: Tensor, dout: Tensor, lower_bound: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of the tensors of `launch_forward`, in order; that of an absent state is empty."""
    sizes = tile_sizes(q, state is not None)
    grads = [torch.empty_like(x) for x in (q, k, v, decay, beta)]
    dstate = q.new_empty(0) if state is None else torch.empty_like(state)
    partial = q.new_empty(2, sizes.tiles, sizes.HEADS, sizes.WIDTH, dtype=torch.float32)
    blocks_backward[(sizes.tiles * sizes.HEADS,)](
        q, k, v, decay, beta, A_log, dt_bias, dout if state is None else state, inverses, mixings, norms, dout,
        *grads, dstate, *partial, sizes.blocks, sizes.WIDTH**-0.5, lower_bound or 0.0,
        **constants(sizes, q, lower_bound, state is not None), COLS=BACKWARD_COLS,
        num_warps=warps(sizes, q, state is not None or lower_bound is None),
    )  # fmt: skip
    to_bias, to_rate = partial.sum(1)
    return *grads, to_rate.sum(-1).to(A_log.dtype), to_bias.flatten().to(dt_bias.dtype), dstate


class Launches(NamedTuple):
    """A pair of kernels as functions, on the arguments of `kda` without the view.

    `forward(*inputs, save)` returns O and what backward needs, `shapes(*inputs)` the latter unfilled, and
    `backward(*inputs but the bound, *saved, dout, bound)` the gradients of the tensors.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, ...]]
    shapes: Callable[..., tuple[Tensor, ...]]


class KernelFunction(torch.autograd.Function):
    """`kda` by two launches, in eager mode. Arguments: the launches, then their inputs."""

    @staticmethod
    def forward(ctx: Any, launches: Launches, *inputs: Any) -> Tensor:
        """Return O, and keep what backward needs."""
        out, *saved = launches.forward(*inputs, True)
        ctx.save_for_backward(*inputs[:-1], *saved)
        ctx.launches, ctx.lower_bound = launches, inputs[-1]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """One gradient per argument; None for what is no tensor."""
        tensors = ctx.saved_tensors
        *grads, dstate = ctx.launches.backward(*tensors, dout.contiguous(), ctx.lower_bound)
        return None, *grads, None if tensors[7] is None else dstate, None


def run_eagerly(launches: Launches, inputs: tuple[Any, ...]) -> Tensor:
    """O by `launches`; nothing is kept where no gradient will be asked for."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return KernelFunction.apply(launches, *inputs)
    return launches.forward(*inputs, False)[0]


def kernel_operator(name: str, launches: Launches, saved: int) -> Callable[..., tuple[Tensor, ...]]:
    """Register the launches as an opaque operator with gradients, which compilation can trace, and return it.

    The names hold the module's: every bundle has operators of its own. `saved` is the number of kept tensors.
    """
    tensors = "Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor A_log, Tensor dt_bias, Tensor? state"
    kept = "".join(f", Tensor saved{i}" for i in range(saved))

    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return launches.forward(*inputs, True)

    def fake_forward(*inputs: Any) -> tuple[Tensor, ...]:
        return torch.empty_like(inputs[2]), *launches.shapes(*inputs)

    def fake_backward(*inputs: Any) -> tuple[Tensor, ...]:
        state = inputs[7]
        dstate = inputs[0].new_empty(0) if state is None else torch.empty_like(state)
        return *(torch.empty_like(x) for x in inputs[:7]), dstate

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:-1], *output[1:])
        ctx.lower_bound = inputs[-1]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, dout: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        *grads, dstate = gradients(*inputs, dout.contiguous(), ctx.lower_bound)
        return *grads, None if inputs[7] is None else dstate, None

    operator = torch.library.custom_op(
        f"{NAMESPACE}::{name}",
        forward,
        mutates_args=(),
        schema=f"({tensors}, float? lower_bound) -> ({', '.join(['Tensor'] * (1 + saved))})",
    )
    gradients = torch.library.custom_op(
        f"{NAMESPACE}::{name}_backward",
        launches.backward,
        mutates_args=(),
        schema=f"({tensors}{kept}, Tensor dout, float? lower_bound) -> ({', '.join(['Tensor'] * 8)})",
    )
    operator.register_fake(fake_forward)
    gradients.register_fake(fake_backward)
    operator.register_autograd(backward, setup_context=keep)
    return operator


BLOCKS = Launches(launch_forward, launch_backward, saved_shapes)
BLOCKS_OPERATOR = kernel_operator("kda_blocks", BLOCKS, 3)


def kda_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    lower_bound: float | None,
) -> Tensor:
    """`kda` by the kernels of `triton_kernels`, arguments as there: `[M, T, h, d]`. A state is taken as float32."""
    start = None if state is None else state.float().contiguous()
    inputs = (*(x.contiguous() for x in (q, k, v, decay, beta, A_log, dt_bias)), start, lower_bound)
    if torch.compiler.is_compiling():
        return BLOCKS_OPERATOR(*inputs)[0]
    return run_eagerly(BLOCKS, inputs)
