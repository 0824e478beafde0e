"""KDA by the Triton kernels, as one differentiable function: sizes, launches, autograd and operators for compilation."""

from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_kernels import blocks_backward, blocks_forward

LEAST_TILE = 16  # rows: the least that a matrix product of the kernels takes
BOUND_LINE = 16  # rows measured from one line; e^(8 bound) must be a float32
FORWARD_COLS = 64  # channels at work at a time; what fits the registers of one warp
BACKWARD_COLS = 32
NAMESPACE = "_".join(word for word in __name__.replace("-", "_").split(".") if word.isidentifier())


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
    """What the kernels are compiled for. bfloat16 is multiplied as it is, float16 as tf32, float32 as three tf32."""
    return {
        **{name: value for name, value in sizes._asdict().items() if name.isupper()},
        "LINE": min(sizes.SPAN, BOUND_LINE) if lower_bound is not None else 1,
        "BOUNDED": lower_bound is not None,
        "WHOLE": sizes.is_whole,
        "FROM_STATE": from_state,
        "HALF": like.dtype == torch.bfloat16,
        "PRECISION": "tf32" if like.dtype != torch.float32 else "tf32x3",
    }


def warps(sizes: TileSizes, like: Tensor, is_heavy: bool) -> int:
    """Warps of a program: one for a tile of 16 rows; twice that for 32 rows, for wide operands, for a heavy kernel."""
    return sizes.TILE // LEAST_TILE * (1 if like.dtype == torch.bfloat16 else 2) * (2 if is_heavy else 1)


def saved_tensors(sizes: TileSizes, like: Tensor, tiles: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for X, Z `[tiles, h, R, R]`, rounded as the products of backward round them, and both norms."""
    small = torch.bfloat16 if like.dtype == torch.bfloat16 else torch.float32
    inverses = like.new_empty(tiles, sizes.HEADS, sizes.TILE, sizes.TILE, dtype=small)
    return inverses, torch.empty_like(inverses), like.new_empty(tiles, sizes.HEADS, 2, sizes.TILE, dtype=torch.float32)


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


class BlockFunction(torch.autograd.Function):
    """`kda` by the two launches, in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Arguments of `launch_forward` without the last."""
        *tensors, lower_bound = inputs
        out, *saved = launch_forward(*tensors, lower_bound, any(ctx.needs_input_grad))
        ctx.save_for_backward(*tensors, *saved)
        ctx.lower_bound = lower_bound
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """One gradient per argument; None for an absent state and for the bound."""
        tensors = ctx.saved_tensors
        *grads, dstate = launch_backward(*tensors, dout.contiguous(), ctx.lower_bound)
        return *grads, None if tensors[7] is None else dstate, None


INPUTS = "Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor A_log, Tensor dt_bias, Tensor? state"


def forward_for_operator(*inputs: Any) -> tuple[Tensor, ...]:
    """`launch_forward` that saves."""
    return launch_forward(*inputs, True)


def fake_forward(*inputs: Any) -> tuple[Tensor, ...]:
    """Shapes of `launch_forward` that saves."""
    q, _, v, *_, state, _ = inputs
    sizes = tile_sizes(q, state is not None)
    return torch.empty_like(v), *saved_tensors(sizes, q, sizes.tiles)


def fake_backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Shapes of `launch_backward`."""
    state = inputs[7]
    dstate = inputs[0].new_empty(0) if state is None else torch.empty_like(state)
    return *(torch.empty_like(x) for x in inputs[:7]), dstate


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the operator's backward reads."""
    *tensors, ctx.lower_bound = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)


def backward_by_operator(ctx: Any, dout: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    """Backward of the operator, by the operator of its gradients."""
    tensors = ctx.saved_tensors
    *grads, dstate = block_gradients(*tensors, dout.contiguous(), ctx.lower_bound)
    return *grads, None if tensors[7] is None else dstate, None


# Compilation sees two opaque operators with known shapes. Their names hold the module's, since every bundle has its own.
block_operator = torch.library.custom_op(
    f"{NAMESPACE}::kda_blocks",
    forward_for_operator,
    mutates_args=(),
    schema=f"({INPUTS}, float? lower_bound) -> (Tensor, Tensor, Tensor, Tensor)",
)
block_gradients = torch.library.custom_op(
    f"{NAMESPACE}::kda_blocks_backward",
    launch_backward,
    mutates_args=(),
    schema=f"({INPUTS}, Tensor inverses, Tensor mixings, Tensor norms, Tensor dout, float? lower_bound)"
    f" -> ({', '.join(['Tensor'] * 8)})",
)
block_operator.register_fake(fake_forward)
block_gradients.register_fake(fake_backward)
block_operator.register_autograd(backward_by_operator, setup_context=keep_for_backward)


def kda_blocks(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
    state: Tensor | None, lower_bound: float | None,
) -> Tensor:  # fmt: skip
    """`kda` by the kernels of this file, arguments as there: `[M, T, h, d]` like `v`. A state is taken as float32."""
    start = None if state is None else state.float().contiguous()
    inputs = (*(x.contiguous() for x in (q, k, v, decay, beta, A_log, dt_bias)), start, lower_bound)
    if torch.compiler.is_compiling():
        return block_operator(*inputs)[0]
    return BlockFunction.apply(*inputs)
