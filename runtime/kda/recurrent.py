"""KDA one step at a time, as the paper writes it: slow, without any algebra, and therefore what tests compare with."""

from functools import partial

import torch
from torch import Tensor

from draftc.runtime.kda.math import activated, scaled_queries
from draftc.runtime.kda.states import ScanPlan, advance_dense, scan_states
from draftc.runtime.visibility import View


def delta_step(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """One row enters `state [M, h, d, d]`: forget, then correct what the key recalls towards the value.

    `k`, `v` and `g` are `[M, h, d]`, `strength [M, h]`; S' = e^g S, then S' + k (strength (v - S'ᵀk))ᵀ.
    """
    state = state * g.exp().unsqueeze(-1)
    recalled = torch.einsum("mhk,mhkv->mhv", k, state)
    return state + torch.einsum("mhk,mhv->mhkv", k, strength.unsqueeze(-1) * (v - recalled))


def advance_recurrent(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """The state after rows `[M, h, T, d]` (`strength [M, h, T]`, all activated) entered `state [M, h, d, d]`."""
    for t in range(k.shape[2]):
        state = delta_step(state, k[:, :, t], v[:, :, t], g[:, :, t], strength[:, :, t])
    return state


def kda_recurrent(
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
    """`kda` by its recurrence, T steps over a state `[M, h, d, d]`; at least float32 inside."""
    with torch.autocast(q.device.type, enabled=False):
        keys, values, g, strength = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        queries = scaled_queries(q, g.dtype)
        blank = keys.new_zeros(*keys.shape[:2], keys.shape[-1], values.shape[-1])
        current = blank if state is None else state.to(g.dtype)
        out = []
        for t in range(keys.shape[2]):
            current = delta_step(current, keys[:, :, t], values[:, :, t], g[:, :, t], strength[:, :, t])
            out.append(torch.einsum("mhk,mhkv->mhv", queries[:, :, t], current))
        return torch.stack(out, dim=1).to(v.dtype)


def states_recurrent(
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
    """`kda_states` one row at a time; at least float32 inside."""
    with torch.autocast(k.device.type, enabled=False):
        rows = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        return scan_states(plan, partial(advance_dense, advance_recurrent, rows), state.to(rows[0].dtype))
