"""KDA over a whole block in closed form: two triangular matrices and one triangular solve per head.

With G the running sum of the log decays, all of KDA on rows 1..T from a state S₀ is

    M_ij = k_i·(k_j e^(G_i - G_j)), i > j        P_ij = q_i·(k_j e^(G_i - G_j)), i >= j
    (I + diag(β) M) U = diag(β) (V - (K e^G) S₀)
    O = (Q e^G) S₀ + P U                          S_T = diag(e^G_T) S₀ + (K e^(G_T - G))ᵀ U

e^(G_i - G_j) never exceeds 1, but e^(-G_j) overflows where a gate closes. So the two matrices grow by doubling: rows of
the upper half of a segment meet those of its lower half at the border r between them, e^(G_i - G_r) e^(G_r - G_j), both
exponents at most 0. That takes log2(T) matrix products and no tensor of size T·T·d.

No exponent is a difference of two G: where gates close, G is in the hundreds, and a difference near 0 would carry the
rounding of both. Each is the sum of just the decays between its two rows, which doubles along with the segments; in the
backward pass a decay thus collects what lies around it, and no two large sums cancel.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.kda.math import activated, scaled_queries
from draftc.runtime.kda.states import ScanPlan, advance_dense, scan_states
from draftc.runtime.visibility import View

SEGMENT_ROWS = 32


Level = tuple[Tensor, Tensor]


def decays(g: Tensor) -> tuple[list[Level], Tensor, Tensor]:
    """The decays between rows, from the logarithm of the decay of each, `g [..., T, d]`, at most 0.

    For every doubling of n segments with halves of s rows: from the border to each row of the upper halves, and from
    each row of the lower halves to the border, `[..., n, s, d]` each. Then two logarithms over all rows, `[..., T, d]`:
    from the start to each row, itself included, and from each row, itself left out, to the end.
    """
    rows = g.shape[-2]
    levels: list[Level] = []
    before = F.pad(g, (0, 0, 0, (1 << (rows - 1).bit_length()) - rows)).unsqueeze(-2)
    after = torch.zeros_like(before)
    while before.shape[-3] > 1:
        (lower, upper), (left, right) = (x.unflatten(-3, (-1, 2)).unbind(-3) for x in (before, after))
        levels.append((upper.exp(), left.exp()))
        before = torch.cat([lower, upper + lower[..., -1:, :]], dim=-2)
        after = torch.cat([left + upper[..., -1:, :], right], dim=-2)
    return levels, before[..., 0, :rows, :], after[..., 0, :rows, :]


def decayed_products(left: Tensor, k: Tensor, levels: list[Level]) -> Tensor:
    """Strict lower triangle of left_i·(k_j e^(G_i - G_j)); `left`, `k` `[..., T, d]`, `levels` of `decays`.

    Returns `[..., T, T]`.
    """
    rows = k.shape[-2]
    left, k = (F.pad(x, (0, 0, 0, (1 << len(levels)) - rows)) for x in (left, k))
    matrix = left.new_zeros(*left.shape[:-1], 1, 1)
    for level, (upper, lower) in enumerate(levels):
        later, earlier = (x.unflatten(-2, (-1, 2, 1 << level)) for x in (left, k))
        matrix = doubled(matrix, later[..., 1, :, :] * upper, earlier[..., 0, :, :] * lower)
    return matrix[..., 0, :rows, :rows]


def doubled(matrix: Tensor, later: Tensor, earlier: Tensor) -> Tensor:
    """One doubling of `decayed_products`: `matrix [..., 2n, s, s]` of the halves -> `[..., n, 2s, 2s]`.

    `later` and `earlier`, `[..., n, s, d]`, are the decayed rows of the upper and of the lower halves.
    """
    lower, upper = matrix.unflatten(-3, (-1, 2)).unbind(-3)
    top = torch.cat([lower, torch.zeros_like(lower)], dim=-1)
    return torch.cat([top, torch.cat([later @ earlier.transpose(-1, -2), upper], dim=-1)], dim=-2)


def remembered(rows: Tensor, before: Tensor, state: Tensor) -> Tensor:
    """(rows e^before) S: what `rows [M, h, T, d]` read of the `state [M, h, d, d]` from before the block."""
    return (rows * before.exp()) @ state


def corrections(k: Tensor, wanted: Tensor, strength: Tensor, levels: list[Level]) -> Tensor:
    """U, what every row adds along its key, from activated rows `[M, h, T, d]` and `strength [M, h, T]`.

    `wanted`, `[M, h, T, d]`, is the value of each row less what its key recalls from the state before the block.
    """
    beta = strength.unsqueeze(-1)
    system = beta * decayed_products(k, k, levels)
    return torch.linalg.solve_triangular(system, beta * wanted, upper=False, unitriangular=True)


def advance_block(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """The state after rows `[M, h, T, d]` (`strength [M, h, T]`, all activated) entered `state [M, h, d, d]`.

    Any T: `SEGMENT_ROWS` rows at a time.
    """
    for part in zip(*(x.split(SEGMENT_ROWS, dim=2) for x in (k, v, g, strength)), strict=True):
        keys, values, fall, weight = part
        levels, before, after = decays(fall)
        added = corrections(keys, values - remembered(keys, before, state), weight, levels)
        state = state * before[:, :, -1:].exp().transpose(2, 3) + (keys * after.exp()).transpose(2, 3) @ added
    return state


def kda_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    state: Tensor | None,
    _view: View,
    lower_bound: float | None,
) -> Tensor:
    """`kda` in closed form, the whole of T at once; at least float32 inside."""
    with torch.autocast(q.device.type, enabled=False):
        keys, values, g, strength = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        queries = scaled_queries(q, g.dtype)
        levels, before, _ = decays(g)
        start = None if state is None else state.to(g.dtype)
        wanted = values if start is None else values - remembered(keys, before, start)
        added = corrections(keys, wanted, strength, levels)
        seen = decayed_products(queries, keys, levels)
        out = seen @ added + (queries * keys).sum(-1, keepdim=True) * added
        if start is not None:
            out = out + remembered(queries, before, start)
        return out.transpose(1, 2).to(v.dtype)


def states_block(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    state: Tensor,
    plan: ScanPlan,
    lower_bound: float | None,
) -> Tensor:
    """`kda_states` in closed form, `SEGMENT_ROWS` rows at a time; at least float32 inside."""
    with torch.autocast(k.device.type, enabled=False):
        rows = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        return scan_states(plan, partial(advance_dense, advance_block, rows), state.to(rows[0].dtype))
