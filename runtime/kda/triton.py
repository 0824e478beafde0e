"""KDA by Triton kernels that lie in files of their own; where Triton is missing, by the closed form."""

import warnings

from torch import Tensor

from draftc.runtime.kda.block import kda_block, states_block
from draftc.runtime.kda.constants import constant_to_compilers
from draftc.runtime.kda.states import ScanPlan
from draftc.runtime.visibility import View


class MissingTritonWarning(UserWarning):
    """A draft was compiled for Triton kernels, and runs by plain tensor operations instead."""


@constant_to_compilers
def misses_triton() -> bool:
    """Whether the kernel files cannot be imported, which a `MissingTritonWarning` says."""
    try:
        from draftc.runtime.kda.triton_core import kda_blocks
    except ImportError as missing:
        warnings.warn(f"KDA runs by plain tensor operations: {missing}", MissingTritonWarning, stacklevel=4)
        return True
    return not callable(kda_blocks)


def kda_triton(
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
    """`kda` by one kernel forward and one backward, float32 inside; `kda_block` where Triton is missing."""
    if misses_triton():
        return kda_block(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    from draftc.runtime.kda.triton_core import kda_blocks

    return kda_blocks(q, k, v, decay, beta, A_log, dt_bias, state, lower_bound)


def states_triton(
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
    """`kda_states` by kernels that carry the state over tiles of 16 rows, float32 inside.

    By `states_block` where Triton is missing.
    """
    if misses_triton():
        return states_block(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    from draftc.runtime.kda.triton_states import kda_walked_states

    owned = state if plan.owners is None else state[plan.owners]
    return kda_walked_states(k, v, decay, beta, A_log, dt_bias, owned, plan.walk, lower_bound)
