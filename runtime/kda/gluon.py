"""KDA by this project's Gluon kernels for Hopper cards and newer, which lie in files of their own."""

from torch import Tensor

from draftc.runtime.kda.constants import constant_to_compilers
from draftc.runtime.kda.states import ScanPlan
from draftc.runtime.kda.triton import kda_triton, states_triton
from draftc.runtime.visibility import View


@constant_to_compilers
def misses_gluon() -> bool:
    """Whether the kernel files cannot be imported: Triton is missing, or has no Gluon that they know."""
    try:
        from draftc.runtime.kda.gluon_core import kda_tiles
    except ImportError:
        return True
    return not callable(kda_tiles)


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
    if misses_gluon():
        return kda_triton(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    from draftc.runtime.kda.gluon_core import kda_tiles

    return kda_tiles(q, k, v, decay, beta, A_log, dt_bias, state, lower_bound)


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
    """`kda_states` as `states_triton` finds them: the tiles of these kernels have no state at all."""
    return states_triton(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
