"""The parts of Kimi delta attention (KDA, arXiv:2510.26692) that are no recurrence: fold, convolve, gate, normalise."""

import torch
import torch.nn.functional as F
from torch import Tensor


class BlockSizeError(ValueError):
    """The rows of a draft are no whole number of blocks."""


def fold_blocks(rows: Tensor, block_size: int) -> Tensor:
    """`[B, N*b, H] -> [B*N, b, H]`: every block becomes a sequence of its own.

    Raises `BlockSizeError` when the number of rows is no multiple of `block_size`.
    """
    if rows.shape[1] % block_size:
        raise BlockSizeError(f"{rows.shape[1]} draft rows are no whole number of blocks of {block_size}")
    return rows.reshape(-1, block_size, rows.shape[-1])


def convolve_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """`short_convolution` by plain tensor operations, in any dtype: `[M, T, P], [P, K] -> [M, T, P]`."""
    if rows.shape[1] == 0:
        return rows
    padded = F.pad(rows.transpose(1, 2), (weight.shape[-1] - 1, 0))
    mixed = F.conv1d(padded, weight.to(rows.dtype).unsqueeze(1), groups=weight.shape[0])
    return F.silu(mixed).transpose(1, 2)


def gate_rows(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`gated_norm` by plain tensor operations: `[M, T, h, d]`, twice, and `[d]`; at least float32 inside."""
    wide = torch.promote_types(out.dtype, torch.float32)
    normed = F.rms_norm(out.to(wide), weight.shape, weight.to(wide), eps)
    return (normed * torch.sigmoid(gate.to(wide))).to(out.dtype)


def unit_rows(x: Tensor) -> Tensor:
    """`x / sqrt(sum(x²) + 1e-6)` over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def log_decay(raw: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:  # noqa: N803
    """Logarithm of the decay of every key channel, at most 0, from the raw gate `[..., h, d]`.

    With r = raw + dt_bias and a = exp(A_log), `A_log [h]`, `dt_bias [h*d]`: -a*softplus(r) without a bound, and
    lower_bound*sigmoid(a*r) with one, which is negative. All in the dtype of the arguments.
    """
    r = raw + dt_bias.unflatten(0, raw.shape[-2:])
    a = A_log.exp()[:, None]
    if lower_bound is None:
        return -a * F.softplus(r)
    return lower_bound * torch.sigmoid(a * r)


def rounded(parameter: Tensor, like: Tensor) -> Tensor:
    """`parameter` as activations like `like` would hold it, widened to at least float32.

    Mixed-precision training hands `A_log` and `dt_bias` over in the activation dtype, decoding keeps them in float32;
    rounding in every phase makes both see the same numbers.
    """
    return parameter.to(like.dtype).to(torch.promote_types(like.dtype, torch.float32))


def activated(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a recurrence runs on, heads before time: unit keys, values, log decay `[M, h, T, d]`; strength `[M, h, T]`.

    Takes the arguments of `kda`, `[M, T, h, d]` and `[M, T, h]`, and returns at least float32.
    """
    wide = torch.promote_types(decay.dtype, torch.float32)
    g = log_decay(decay.to(wide), rounded(A_log, decay), rounded(dt_bias, decay), lower_bound)
    k = unit_rows(k.to(wide))
    strength = torch.sigmoid(beta.to(wide))
    return k.transpose(1, 2), v.to(wide).transpose(1, 2), g.transpose(1, 2), strength.transpose(1, 2)


def scaled_queries(q: Tensor, wide: torch.dtype) -> Tensor:
    """Unit queries times `d**-0.5`, heads before time, in dtype `wide`: `[M, T, h, d] -> [M, h, T, d]`."""
    return (unit_rows(q.to(wide)) * q.shape[-1] ** -0.5).transpose(1, 2)
