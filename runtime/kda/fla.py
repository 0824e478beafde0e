"""KDA by fla-core's chunked kernels (https://github.com/fla-org/flash-linear-attention), an optional package."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.kda.math import rounded
from draftc.runtime.kda.states import Launch, ScanPlan, scan_states
from draftc.runtime.visibility import View

GRID_LIMIT = 65535


class MissingKernelError(ImportError):
    """A backend was asked for whose package is not installed."""


def fla_chunk_kda() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """fla-core's `chunk_kda`; raises `MissingKernelError` where the package or Triton is missing."""
    try:
        from fla.ops.kda import chunk_kda
    except ImportError as missing:
        raise MissingKernelError(f"backend kda_fla needs the package fla-core with Triton: {missing}") from missing
    return chunk_kda


def launch_sizes(sequences: int, heads: int) -> list[tuple[int, int]]:
    """How to cut `sequences` into launches: (sequences, sequences with padding) of each.

    A launch uses sequences times heads blocks of the third grid axis, which CUDA ends at 65,535. Padding goes to the
    next power of two, within that limit, so that few distinct shapes are compiled and tuned.
    """
    most = max(1, GRID_LIMIT // heads)
    counts = [min(most, sequences - start) for start in range(0, sequences, most)]
    return [(count, min(1 << (count - 1).bit_length(), most)) for count in counts]


def padded_rows(x: Tensor, rows: int) -> Tensor:
    """`x` with zeros after its first axis, up to `rows`."""
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, rows - x.shape[0]))


def kernel_options(decay: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> dict[str, object]:  # noqa: N803
    """What `chunk_kda` is told: gate, sigmoid and unit norms in the kernel, the safe path where a bound allows it."""
    return {
        "A_log": rounded(A_log, decay),
        "dt_bias": rounded(dt_bias, decay),
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "safe_gate": lower_bound is not None,
        "lower_bound": lower_bound,
    }


def kda_fla(
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
    """`kda` by `chunk_kda`, in as many launches as the CUDA grid asks for. Raises `MissingKernelError`."""
    chunk_kda = fla_chunk_kda()
    options = kernel_options(decay, A_log, dt_bias, lower_bound)
    sizes = launch_sizes(q.shape[0], q.shape[2])
    counts = [count for count, _ in sizes]
    starts = [None] * len(counts) if state is None else state.float().split(counts)
    pieces = zip(*(x.split(counts) for x in (q, k, v, decay, beta)), strict=True)
    out = []
    for (count, rows), start, parts in zip(sizes, starts, pieces, strict=True):
        whole = [padded_rows(part, rows) for part in parts]
        initial = None if start is None else padded_rows(start, rows)
        out.append(chunk_kda(*whole, initial_state=initial, **options)[0][:count])
    return torch.cat(out)


def states_fla(
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
    """`kda_states` by `chunk_kda` on sequences of variable length. Raises `MissingKernelError`."""
    options = kernel_options(decay, A_log, dt_bias, lower_bound)
    rows = tuple(x.flatten(0, 1) for x in (k, v, decay, beta))
    return scan_states(plan, partial(advance_packed, rows, options), state.float())


def advance_packed(rows: tuple[Tensor, ...], options: dict[str, object], launch: Launch, states: Tensor) -> Tensor:
    """The states `[R, h, d, d]` after the rows of `launch`; `rows` are k, v, decay `[B*C, h, d]` and beta `[B*C, h]`.

    Queries are zero: no state depends on them.
    """
    if len(launch.tokens) == 0:
        return states
    k, v, decay, beta = (x[launch.tokens].unsqueeze(0) for x in rows)
    sequences = launch.starts_host.shape[0] - 1
    initial = padded_rows(states[launch.continued], sequences)
    done: tuple[Tensor, Any] = fla_chunk_kda()(
        torch.zeros_like(k),
        k,
        v,
        decay,
        beta,
        initial_state=initial,
        output_final_state=True,
        cu_seqlens=launch.starts,
        cu_seqlens_cpu=launch.starts_host,
        **options,
    )
    return states.index_copy(0, launch.continued, done[1][: launch.continued.shape[0]])
