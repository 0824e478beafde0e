"""KDA by this project's Gluon kernels for Hopper cards and newer, which lie in files of their own."""

from collections.abc import Callable

from torch import Tensor

from draftc.runtime.kda.block import kda_block, states_block
from draftc.runtime.kda.states import ScanPlan
from draftc.runtime.kda.triton import triton_blocks
from draftc.runtime.visibility import View


def gluon_tiles() -> Callable[..., Tensor] | None:
    """`kda_tiles` of the kernel files; the plain Triton kernels for a Triton without Gluon, None without Triton."""
    try:
        from draftc.runtime.kda.gluon_core import kda_tiles
    except ImportError:
        return triton_blocks()
    return kda_tiles


def kda_gluon(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    state: Tensor | None,
    view: View,
    lower_bound: float | None,
) -> Tensor:
    """`kda` by one kernel forward and one backward, one warp a tile; by `kda_triton` where a call does not fit them."""
    tiles = gluon_tiles()
    if tiles is None:
        return kda_block(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    return tiles(q, k, v, decay, beta, A_log, dt_bias, state, lower_bound)


def states_gluon(
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
    """`kda_states` in closed form: the kernels have no state at all."""
    return states_block(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
