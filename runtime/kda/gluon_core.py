"""KDA by the Gluon kernels, as one differentiable function: what fits them, launches without Triton's launcher.

A launch through Triton costs about 90 µs of host time, more than the kernel takes. So the kernel that the first call of
a kind compiled is kept and called directly; what Triton would look at on every call is part of the key, or checked.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from draftc.runtime.kda.gluon_backward import reduce_partial, tiles_backward
from draftc.runtime.kda.gluon_forward import tiles_forward
from draftc.runtime.kda.gluon_tiles import TRITON_VERSION
from draftc.runtime.kda.triton_core import Launches, kda_blocks, kernel_operator, run_eagerly

TILE = 16  # rows
WIDTH = 128  # channels of a head
BLOCK_ROWS = (8, 16)
LOWEST_BOUND = -9.0  # e^(8 bound), squared, has to be a normal float32 number
CAPABILITY = (9, 0)
ALIGNMENT = 16  # bytes
MOST_ELEMENTS = 2**31  # offsets are 32 bits wide
PACK, NORMS = 256, 64  # numbers that forward keeps of a tile
DIRECT_RELEASES = ("3.6",)  # of Triton, whose compiled kernels take their arguments as `call_directly` gives them

# Programs a multiprocessor holds at a time, 4 * floor(16384 / (32 * registers)) with one warp each: 168 registers give
# 12, 255 give 8. One more would run as a second wave.
FORWARD_REGISTERS = {True: 168, False: None}  # by whether the gate is bounded
FORWARD_PROGRAMS = {True: 12, False: 8}
BACKWARD_PROGRAMS = 8

COMPILED: dict[tuple[Any, ...], Any] = {}


def misfit(q: Tensor, v: Tensor, decay: Tensor, state: Tensor | None, lower_bound: float | None) -> str | None:
    """Why the kernels cannot run a call, or None. Sizes that selection saw are asked again: a model can be moved."""
    blocks, rows, _, width = q.shape
    if state is not None:
        return "blocks start from a state"
    if rows not in BLOCK_ROWS or width != WIDTH:
        return f"blocks of {rows} rows of {width} channels are not of {BLOCK_ROWS} rows of {WIDTH}"
    if blocks * rows % TILE:
        return f"{blocks} blocks of {rows} rows do not fill tiles of {TILE}"
    if any(x.dtype != torch.bfloat16 for x in (q, v, decay)):
        return f"{q.dtype} is not bfloat16"
    if q.numel() >= MOST_ELEMENTS:
        return f"{q.numel()} elements exceed offsets of 32 bits"
    if lower_bound is not None and not LOWEST_BOUND <= lower_bound < 0:
        return f"a bound of {lower_bound} is outside [{LOWEST_BOUND}, 0)"
    capability = capability_of(q.device) if torch.compiler.is_compiling() else kept_capability(q.device)
    if capability < CAPABILITY:
        return f"the card has compute capability {capability}"
    return None


def capability_of(device: torch.device) -> tuple[int, int]:
    """Compute capability of a card; (0, 0) of what is none."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def kept_capability(device: torch.device) -> tuple[int, int]:
    """`capability_of` asked once: it takes longer than all other checks. `torch.compile` warns of a cache."""
    return capability_of(device)


@cache
def multiprocessors(device: int) -> int:
    """Multiprocessors of card `device`."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def program_count(device: int, per_multiprocessor: int, heads: int, tiles: int) -> int:
    """Programs of a launch: a multiple of the heads, so that each keeps one head, and no more than run at a time."""
    resident = multiprocessors(device) * per_multiprocessor // heads * heads
    return max(heads, min(resident, tiles))


def call_directly() -> bool:
    """Whether compiled kernels of this Triton are known to take all arguments in the order of the source."""
    return TRITON_VERSION.rpartition(".")[0] in DIRECT_RELEASES


def launch(kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: tuple[Any, ...],
           kind: tuple[Any, ...], **options: Any) -> None:  # fmt: skip
    """Run `kernel`: through Triton the first time, directly from then on.

    `kind` tells apart what Triton compiles separately beyond the constants: the card, dtypes, divisibility of integers.
    """
    key = (kernel, constants, kind)
    compiled = COMPILED.get(key)
    if compiled is not None:
        compiled[grid](*arguments, *constants)
        return
    compiled = kernel[grid](*arguments, *constants, **options)
    if call_directly():
        COMPILED[key] = compiled


def kind_of(device: int, count: int, parameters: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What Triton looks at in a call of these kernels: card, an integer's divisibility, dtypes of the parameters."""
    return device, count == 1, count % 16 == 0, *(x.dtype for x in parameters)


def launch_tiles_forward(
    inputs: Sequence[Tensor], lower_bound: float | None, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """O, and the packed matrices and norms for backward, empty unless `save`.

    `inputs` are the seven tensors of `kda` but the state; they fit the kernels and are aligned.
    """
    q, *_, beta, A_log, dt_bias = inputs
    device, heads, is_bounded = q.get_device(), q.shape[2], lower_bound is not None
    tiles = q.numel() // (TILE * WIDTH)
    out = torch.empty_like(q)
    packs, norms = kept_tensors(q, tiles if save else 0)
    programs = program_count(device, FORWARD_PROGRAMS[is_bounded], heads, tiles)
    launch(
        tiles_forward,
        (programs, 1, 1),
        (*inputs, out, packs, norms, tiles, WIDTH**-0.5, lower_bound or 0.0),
        (q.shape[1], heads, WIDTH, is_bounded, save),
        kind_of(device, tiles, (beta, A_log, dt_bias)),
        num_warps=1,
        maxnreg=FORWARD_REGISTERS[is_bounded],
    )
    return out, packs, norms


def kept_tensors(like: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """Room for what forward keeps of `tiles`: 768 bytes each."""
    return like.new_empty(tiles * PACK), like.new_empty(tiles * NORMS, dtype=torch.float32)


def kept_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    """`kept_tensors` of a call."""
    return kept_tensors(inputs[0], inputs[0].numel() // (TILE * WIDTH))


def launch_tiles_backward(
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    dout: Tensor,
    lower_bound: float | None,
    large: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Gradients of `inputs`, and an empty one of the absent state; the four like q are those of `large`, filled."""
    q, *_, beta, A_log, dt_bias = inputs
    device, heads, is_bounded = q.get_device(), q.shape[2], lower_bound is not None
    tiles = q.numel() // (TILE * WIDTH)
    dbeta = torch.empty_like(beta)
    programs = program_count(device, BACKWARD_PROGRAMS, heads, tiles)
    partial = q.new_empty(programs * (WIDTH + 1), dtype=torch.float32)
    launch(
        tiles_backward,
        (programs, 1, 1),
        (*inputs, *saved, aligned(dout), *large, dbeta, partial, tiles, WIDTH**-0.5, lower_bound or 0.0),
        (q.shape[1], heads, WIDTH, is_bounded),
        kind_of(device, tiles, (beta, A_log, dt_bias)),
        num_warps=1,
    )  # fmt: skip
    to_bias, to_rate = q.new_empty(heads * WIDTH, dtype=torch.float32), q.new_empty(heads, dtype=torch.float32)
    launch(
        reduce_partial,
        (heads, WIDTH // 32, 1),
        (partial, to_bias, to_rate, programs // heads),
        (heads, WIDTH),
        kind_of(device, programs // heads, ()),
        num_warps=4,
    )
    return *large, dbeta, to_rate.to(A_log.dtype), to_bias.to(dt_bias.dtype), q.new_empty(0)


def aligned(x: Tensor) -> Tensor:
    """`x`, contiguous and on a 16-byte border, as asynchronous copies and the kept kernels need it."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def launch_forward_together(*inputs: Any) -> tuple[Tensor, ...]:
    """`launch_tiles_forward` on the arguments of `Launches.forward`, aligned."""
    *tensors, _, lower_bound, save = inputs
    return launch_tiles_forward(tensors, lower_bound, save)


def launch_backward_together(*inputs: Any) -> tuple[Tensor, ...]:
    """`launch_tiles_backward` likewise; the four large gradients are parts of one allocation, which saves host time."""
    tensors, (_, *saved, dout, lower_bound) = inputs[:7], inputs[7:]
    large = tensors[0].new_empty((4, *tensors[0].shape)).unbind(0)
    return launch_tiles_backward(tensors, saved, dout, lower_bound, large)


def launch_forward_apart(*inputs: Any) -> tuple[Tensor, ...]:
    """`launch_tiles_forward` for an operator, whose arguments may lie anywhere."""
    *tensors, _, lower_bound, save = inputs
    return launch_tiles_forward([aligned(x) for x in tensors], lower_bound, save)


def launch_backward_apart(*inputs: Any) -> tuple[Tensor, ...]:
    """`launch_tiles_backward` for an operator, whose results may not share memory."""
    tensors, (_, *saved, dout, lower_bound) = inputs[:7], inputs[7:]
    large = [torch.empty_like(tensors[0]) for _ in range(4)]
    return launch_tiles_backward([aligned(x) for x in tensors], saved, dout, lower_bound, large)


TILES = Launches(launch_forward_together, launch_backward_together, kept_shapes)
TILES_OPERATOR = kernel_operator("kda_tiles", Launches(launch_forward_apart, launch_backward_apart, kept_shapes), 2)


def kda_tiles(
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
    """`kda` by the Gluon kernels, by those of `triton_kernels` where a call misfits them."""
    if misfit(q, v, decay, state, lower_bound) is not None:
        return kda_blocks(q, k, v, decay, beta, A_log, dt_bias, state, lower_bound)
    tensors = q, k, v, decay, beta, A_log, dt_bias
    if torch.compiler.is_compiling():
        return TILES_OPERATOR(*(x.contiguous() for x in tensors), None, lower_bound)[0]
    return run_eagerly(TILES, (*(aligned(x) for x in tensors), None, lower_bound))
