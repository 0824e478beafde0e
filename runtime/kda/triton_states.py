"""The states of KDA before anchors by Triton kernels: two launches forward and two backward, whatever the anchors."""

from typing import Any

import torch
from torch import Tensor

from draftc.runtime.kda.triton_core import (
    BOUND_LINE,
    LEAST_TILE,
    NAMESPACE,
    operand_dtype,
    power_of_two,
    product_constants,
    tile_warps,
)
from draftc.runtime.kda.triton_state_backward import tiles_backward, walk_backward
from draftc.runtime.kda.triton_state_kernels import context_tiles, walk_forward

WALK_WARPS = 4
TILE_COLS = 32  # channels of all tiles at work at a time
KEY_COLS = 16


def walk_constants(k: Tensor) -> dict[str, Any]:
    """What the kernels that carry the state are compiled for."""
    return {"TILE": LEAST_TILE, "HEADS": k.shape[-2], "WIDTH": k.shape[-1], **product_constants(k)}


def tile_constants(k: Tensor, lower_bound: float | None) -> dict[str, Any]:
    """What the kernels that work on all tiles are compiled for."""
    bounded = {"BOUNDED": lower_bound is not None, "LINE": BOUND_LINE if lower_bound is not None else 1}
    return walk_constants(k) | bounded


def value_cols(k: Tensor) -> int:
    """Channels that a program carries from tile to tile: what fits its registers."""
    return 32 if k.dtype == torch.bfloat16 else 16


def tile_facts(k: Tensor, tiles: Tensor) -> tuple[Tensor, ...]:
    """Room for K e^G, K e^(G_T - G), e^G_T, X, M and norms of `tiles [D, P, 2]`; float32, or operands of bfloat16."""
    count, (heads, width) = tiles.shape[0] * tiles.shape[1], k.shape[-2:]
    rows = k.new_empty(2, count, heads, LEAST_TILE, width, dtype=operand_dtype(k))
    inverses = k.new_empty(count, heads, LEAST_TILE, LEAST_TILE, dtype=operand_dtype(k))
    shapes = [(width,), (LEAST_TILE, LEAST_TILE), (LEAST_TILE,)]
    totals, writes, norms = (k.new_empty(count, heads, *shape, dtype=torch.float32) for shape in shapes)
    return rows, totals, inverses, writes, norms


def launch_walk(
    k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, state: Tensor,
    tiles: Tensor, lengths: Tensor, lower_bound: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """States `[D, P+1, h, d, d]` before every tile and after the last, unfilled past `lengths [D]`, and `tile_facts`.

    Contiguous k, v, decay `[B, C, h, d]` and beta; `state [D, h, d, d]` float32; tiles `[D, P, 2]`, first row of the
    flattened context and count.
    """
    heads, width = k.shape[-2:]
    documents, most, _ = tiles.shape
    rows, totals, inverses, writes, norms = tile_facts(k, tiles)
    context_tiles[(documents * most * heads,)](
        k, decay, beta, A_log, dt_bias, tiles, *rows, totals, inverses, writes, norms, lower_bound or 0.0,
        **tile_constants(k, lower_bound), COLS=TILE_COLS, num_warps=tile_warps(k),
    )  # fmt: skip
    kept = state.new_empty(documents, most + 1, *state.shape[1:])
    walk_forward[(documents * heads * (width // value_cols(k)),)](
        v, beta, tiles, lengths, *rows, totals, inverses, state, kept, most,
        **walk_constants(k), PADDED=power_of_two(width), COLS=value_cols(k), num_warps=WALK_WARPS,
    )  # fmt: skip
    return kept, rows, totals, inverses, writes, norms


def walk_shapes(*inputs: Any) -> tuple[Tensor, ...]:
    """What `launch_walk` returns, unfilled."""
    k, state, tiles = inputs[0], inputs[6], inputs[7]
    return state.new_empty(tiles.shape[0], tiles.shape[1] + 1, *state.shape[1:]), *tile_facts(k, tiles)


def launch_walk_back(
    k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
    tiles: Tensor, lengths: Tensor, kept: Tensor, rows: Tensor, totals: Tensor, inverses: Tensor, writes: Tensor,
    norms: Tensor, dkept: Tensor, lower_bound: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of the seven tensors of `launch_walk` from that of its states."""
    heads, width = k.shape[-2:]
    documents, most, _ = tiles.shape
    parts = width // value_cols(k)
    through = dkept.clone(memory_format=torch.contiguous_format)
    added, learned = torch.empty_like(rows)
    joints = kept.new_empty(documents * most, heads, parts, LEAST_TILE, LEAST_TILE)
    alongs = kept.new_empty(documents * most, heads, parts, LEAST_TILE)
    dk, dv, ddecay, dbeta = (torch.zeros_like(x) for x in (k, v, decay, beta))
    walk_backward[(documents * heads * parts,)](
        v, beta, tiles, lengths, *rows, totals, inverses, kept, through, dv, added, learned, joints, alongs, most,
        **walk_constants(k), PADDED=power_of_two(width), COLS=value_cols(k), num_warps=WALK_WARPS,
    )  # fmt: skip
    partial = kept.new_zeros(2, documents * most, heads, width)
    tiles_backward[(documents * most * heads * (width // KEY_COLS),)](
        k, decay, beta, A_log, dt_bias, tiles, kept, through, added, learned, writes, joints, norms, alongs,
        dk, ddecay, dbeta, *partial, most, lower_bound or 0.0,
        **tile_constants(k, lower_bound), PARTS=parts, COLS=KEY_COLS, num_warps=tile_warps(k),
    )  # fmt: skip
    to_bias, to_rate = partial.sum(1)
    dA_log = to_rate.sum(-1).to(A_log.dtype)
    return dk, dv, ddecay, dbeta, dA_log, to_bias.flatten().to(dt_bias.dtype), through[:, 0].clone()


def walk_back_shapes(*inputs: Any) -> tuple[Tensor, ...]:
    """What `launch_walk_back` returns, unfilled."""
    return *(torch.empty_like(x) for x in inputs[:6]), torch.empty_like(inputs[8][:, 0])


def keep_for_walk_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what `launch_walk_back` reads."""
    *tensors, ctx.lower_bound = inputs
    ctx.save_for_backward(*tensors[:6], *tensors[7:], *output)
    ctx.set_materialize_grads(False)


def walk_gradients(ctx: Any, dkept: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    """`launch_walk_back` by its operator; one gradient per argument, None for what has none."""
    return *WALK_BACK(*ctx.saved_tensors, dkept, ctx.lower_bound), None, None, None


def walk_operators() -> tuple[Any, Any]:
    """Register the walk and its gradient as operators that compilation does not look into, and return both."""
    rows = "Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor A_log, Tensor dt_bias"
    plan = "Tensor tiles, Tensor lengths"
    facts = ", ".join(f"Tensor {name}" for name in ("kept", "scaled", "totals", "inverses", "writes", "norms", "dkept"))
    forward = torch.library.custom_op(
        f"{NAMESPACE}::kda_walk",
        launch_walk,
        mutates_args=(),
        schema=f"({rows}, Tensor state, {plan}, float? lower_bound) -> ({', '.join(['Tensor'] * 6)})",
    )
    backward = torch.library.custom_op(
        f"{NAMESPACE}::kda_walk_back",
        launch_walk_back,
        mutates_args=(),
        schema=f"({rows}, {plan}, {facts}, float? lower_bound) -> ({', '.join(['Tensor'] * 7)})",
    )
    forward.register_fake(walk_shapes)
    backward.register_fake(walk_back_shapes)
    forward.register_autograd(walk_gradients, setup_context=keep_for_walk_back)
    return forward, backward


WALK, WALK_BACK = walk_operators()


def kda_walked_states(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    walk: tuple[Tensor, Tensor, Tensor],
    lower_bound: float | None,
) -> Tensor:
    """`kda_states` by the kernels of `triton_state_kernels`, from `state [D, h, d, d]` of every document; float32.

    `walk` is that of the plan: tiles of up to `LEAST_TILE` rows, lengths, stops.
    """
    tiles, lengths, stops = walk
    inputs = (x.contiguous() for x in (k, v, decay, beta, A_log, dt_bias, state.float()))
    return WALK(*inputs, tiles, lengths, lower_bound)[0].flatten(0, 1).index_select(0, stops)
