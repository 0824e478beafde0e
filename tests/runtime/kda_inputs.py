"""Inputs of the KDA operation, made hard on purpose."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hard:
    """What makes a case hard: `gate` scales raw gates (saturation), `common` is the share that all keys share."""

    gate: float = 1.0
    common: float = 0.0


NAMES = ("q", "k", "v", "decay", "beta", "A_log", "dt_bias", "state")


def kda_inputs(
    rows: int, hard: Hard, with_state: bool, batch: int = 3, heads: int = 2, dim: int = 4, dtype=torch.float64
) -> list[Tensor | None]:
    """q, k, v, decay `[M, T, h, d]`, beta, A_log, dt_bias, state: leaves that want gradients."""
    generator = torch.Generator().manual_seed(rows)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    shared = draw(batch, 1, heads, dim)
    made = [
        draw(batch, rows, heads, dim),
        draw(batch, rows, heads, dim) * (1 - hard.common) + shared * hard.common,
        draw(batch, rows, heads, dim),
        draw(batch, rows, heads, dim) * hard.gate,
        draw(batch, rows, heads),
        (torch.rand(heads, generator=generator, dtype=torch.float64) * 15 + 1).log(),
        draw(heads * dim) * 0.5,
        draw(batch, heads, dim, dim) if with_state else None,
    ]
    return [None if x is None else x.to(dtype).requires_grad_() for x in made]
