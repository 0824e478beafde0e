"""KDA: one operation, several backends."""

from torch import Tensor

from draftc.runtime.kda.block import kda_block, states_block
from draftc.runtime.kda.fla import kda_fla, states_fla
from draftc.runtime.kda.gluon import kda_gluon, states_gluon
from draftc.runtime.kda.recurrent import kda_recurrent, states_recurrent
from draftc.runtime.kda.states import plan_states
from draftc.runtime.kda.triton import kda_triton, states_triton
from draftc.runtime.visibility import View, ViewError


def kda(
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
    """Kimi delta attention (arXiv:2510.26692) over M independent sequences of T rows.

    Per row, with g = `log_decay(...)`, b = sigmoid(beta) and unit q and k: the state S forgets, S = diag(e^g) S,
    learns, S = S + k (b (v - Sᵀk))ᵀ, and answers Sᵀq / sqrt(d).

    Args:
        q: `[M, T, h, d]` after its convolution, not normalised.
        k: `[M, T, h, d]` likewise.
        v: `[M, T, h, d]` after its convolution.
        decay: `[M, T, h, d]`, the raw gate of every key channel, before `dt_bias`.
        beta: `[M, T, h]`, raw logits of the strength of every write.
        A_log: `[h]`, logarithm of the decay rate. Rounded through the dtype of `decay`, whatever its own.
        dt_bias: `[h*d]`, added to `decay`. Rounded likewise.
        state: `[M, h, d, d]` before the first row, keys before values; None for zero.
        view: names the backend.
        lower_bound: of the log decay, negative; None for the unbounded gate.

    Returns:
        `[M, T, h, d]` in the dtype of `v`. Inside, everything is at least float32.

    Raises:
        ViewError: no backend has the name in `view`.

    """
    if view.backend == "kda_recurrent":
        return kda_recurrent(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_block":
        return kda_block(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_fla":
        return kda_fla(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_triton":
        return kda_triton(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_gluon":
        return kda_gluon(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    raise ViewError(f"KDA backend {view.backend!r} is none of kda_recurrent, kda_block, kda_fla, kda_triton, kda_gluon")


def kda_states(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    state: Tensor,
    anchors: Tensor,
    view: View,
    lower_bound: float | None,
) -> Tensor:
    """The states of `kda` before every anchor, after context rows below it: `[B*N, h, d, d]`, at least float32.

    Args:
        k: `[B, C, h, d]`, as `kda` takes it.
        v: `[B, C, h, d]` likewise.
        decay: `[B, C, h, d]` likewise.
        beta: `[B, C, h]` likewise.
        A_log: `[h]` likewise.
        dt_bias: `[h*d]` likewise.
        state: `[B, h, d, d]` before the first row.
        anchors: `[B, N]`, row numbers into the context, in any order; clamped to `[0, C]`.
        view: names the backend and brings the plan of this batch; without one it is made here from `anchors`.
        lower_bound: as `kda` takes it.

    Returns:
        `[B*N, h, d, d]`, blocks of one row of the batch after each other.

    Raises:
        ViewError: no backend has the name in `view`.

    """
    plan = view.plan or plan_states(anchors.tolist(), k.shape[1], k.device)
    if view.backend == "kda_recurrent":
        return states_recurrent(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_block":
        return states_block(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_fla":
        return states_fla(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_triton":
        return states_triton(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_gluon":
        return states_gluon(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    raise ViewError(f"KDA backend {view.backend!r} is none of kda_recurrent, kda_block, kda_fla, kda_triton, kda_gluon")
