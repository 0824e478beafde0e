"""KDA over a whole block in closed form: two triangular matrices and one triangular solve per head.

With G the running sum of the log decays, all of KDA on rows 1..T from a state S₀ is

    M_ij = k_i·(k_j e^(G_i - G_j)), i > j        P_ij = q_i·(k_j e^(G_i - G_j)), i >= j
    (I + diag(β) M) U = diag(β) (V - (K e^G) S₀)
    O = (Q e^G) S₀ + P U                          S_T = diag(e^G_T) S₀ + (K e^(G_T - G))ᵀ U

e^(G_i - G_j) never exceeds 1, but e^(-G_j) overflows where a gate closes. So the two matrices grow by doubling: rows of
the upper half of a segment meet those of its lower half at the border r between them, e^(G_i - G_r) e^(G_r - G_j), both
exponents at most 0. That takes log2(T) matrix products and no tensor of size T·T·d.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.kda.math import activated, scaled_queries
from draftc.runtime.kda.states import ScanPlan, advance_dense, scan_states
from draftc.runtime.visibility import View

SEGMENT_ROWS = 32


def decayed_products(left: Tensor, k: Tensor, summed: Tensor) -> Tensor:
    """Strict lower triangle of left_i·(k_j e^(G_i - G_j)); `left`, `k`, `summed` (G) `[..., T, d]` -> `[..., T, T]`.

    G falls along T; no exponent is above 0 on the way.
    """
    rows = k.shape[-2]
    padded = 1 << (rows - 1).bit_length()
    left, k = (F.pad(x, (0, 0, 0, padded - rows)) for x in (left, k))
    summed = torch.cat([summed, summed[..., -1:, :].expand(*summed.shape[:-2], padded - rows, -1)], dim=-2)
    matrix = left.new_zeros(*left.shape[:-1], 1, 1)
    for half in (1 << level for level in range(padded.bit_length() - 1)):
        matrix = doubled(matrix, *(x.unflatten(-2, (-1, 2, half)) for x in (left, k, summed)))
    return matrix[..., 0, :rows, :rows]


def doubled(matrix: Tensor, left: Tensor, k: Tensor, summed: Tensor) -> Tensor:
    """One doubling of `decayed_products`: `matrix [..., 2n, s, s]` of the halves -> `[..., n, 2s, 2s]`.

    The others are `[..., n, 2, s, d]`: n segments, each in a lower and an upper half of s rows.
    """
    lower, upper = matrix.unflatten(-3, (-1, 2)).unbind(-3)
    border = summed[..., 0, -1:, :]
    later = left[..., 1, :, :] * (summed[..., 1, :, :] - border).exp()
    earlier = k[..., 0, :, :] * (border - summed[..., 0, :, :]).exp()
    top = torch.cat([lower, torch.zeros_like(lower)], dim=-1)
    return torch.cat([top, torch.cat([later @ earlier.transpose(-1, -2), upper], dim=-1)], dim=-2)


def corrections(state: Tensor | None, k: Tensor, v: Tensor, summed: Tensor, strength: Tensor) -> Tensor:
    """U, what every row adds along its key: activated rows `[M, h, T, d]`, `strength [M, h, T]` -> `[M, h, T, d]`."""
    beta = strength.unsqueeze(-1)
    wanted = v if state is None else v - (k * summed.exp()) @ state
    system = beta * decayed_products(k, k, summed)
    return torch.linalg.solve_triangular(system, beta * wanted, upper=False, unitriangular=True)


def advance_block(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """The state after rows `[M, h, T, d]` (`strength [M, h, T]`, all activated) entered `state [M, h, d, d]`.

    Any T: `SEGMENT_ROWS` rows at a time.
    """
    for part in zip(*(x.split(SEGMENT_ROWS, dim=2) for x in (k, v, g, strength)), strict=True):
        keys, values, fall, weight = part
        summed = fall.cumsum(2)
        last = summed[:, :, -1:]
        added = corrections(state, keys, values, summed, weight)
        state = state * last.exp().transpose(2, 3) + (keys * (last - summed).exp()).transpose(2, 3) @ added
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
        summed = g.cumsum(2)
        start = None if state is None else state.to(g.dtype)
        added = corrections(start, keys, values, summed, strength)
        seen = decayed_products(queries, keys, summed)
        out = seen @ added + (queries * keys).sum(-1, keepdim=True) * added
        if start is not None:
            out = out + (queries * summed.exp()) @ start
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
