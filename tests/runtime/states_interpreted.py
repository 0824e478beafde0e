"""Runs the kernels of KDA's states in Triton's interpreter and prints errors against the recurrence, as JSON.

A script of its own: whether kernels are interpreted is decided when they are imported.
"""

import json
import os
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "overflow encountered in exp2")  # a saturated gate: 1 / (1 + inf) is its share

import torch
from torch import Tensor

from draftc.runtime.kda import kda_states
from draftc.runtime.visibility import View
from tests.runtime.kda_inputs import NAMES, Hard, kda_inputs

ALIKE = Hard(common=0.5)
BOUNDS = {"bounded": -5.0, "unbounded": None}


def outcome(backend: str, inputs: list[Tensor], anchors: list[list[int]], bound: float | None, compiled: bool = False):
    """The states, then the gradient of every input."""
    view = View(None, backend, 0.0, None)

    def function(*x: Tensor) -> Tensor:
        return kda_states(*x, torch.tensor(anchors), view, bound)

    out = (torch.compile(function, backend="aot_eager") if compiled else function)(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, inputs, weight, allow_unused=True, materialize_grads=True)]


def leaves(rows: int, dtype: torch.dtype, hard: Hard, dim: int) -> list[Tensor]:
    """Leaves whose values are numbers of `dtype`; gate parameters and state are held in float32."""
    kinds = [dtype] * 4 + [torch.float32] * 3
    made = kda_inputs(rows, hard, True, batch=2, heads=2, dim=dim)[1:]
    return [x.detach().to(dtype).to(kind).requires_grad_() for x, kind in zip(made, kinds, strict=True)]


def errors(rows: int, anchors: list[list[int]], bound: float | None, dtype=torch.float32, hard=ALIKE, dim=32):
    """Norms of differences to the recurrence in float32, relative to the norms of its results."""
    mine = leaves(rows, dtype, hard, dim)
    exact = [x.detach().float().requires_grad_() for x in mine]
    pairs = zip(
        outcome("kda_recurrent", exact, anchors, bound), outcome("kda_triton", mine, anchors, bound), strict=True
    )
    norms = [((got.float() - want).norm() / want.norm().clamp_min(1e-30)).item() for want, got in pairs]
    return dict(zip(("out", *NAMES[1:]), norms, strict=True))


def cases() -> dict[str, dict[str, float]]:
    found = {}
    for name, bound in BOUNDS.items():
        for rows in (2, 16, 31, 70):
            found[f"{name} {rows}"] = errors(rows, [[rows], [rows - 1]], bound)
        found[f"{name} ragged"] = errors(40, [[3, 3, -1, 40], [0, 999, 1, 20]], bound, hard=Hard(common=0.9))
        found[f"{name} nothing"] = errors(9, [[0, 0], [0, 0]], bound)
        found[f"{name} saturated"] = errors(18, [[18, 4], [2, 17]], bound, hard=Hard(gate=8.0))
        found[f"{name} bfloat16"] = errors(20, [[20], [13]], bound, torch.bfloat16, dim=64)
    return found


def changed_bits() -> list[int]:
    """Which results of compiled code differ from those of eager mode in a bit."""
    inputs, anchors = leaves(18, torch.float32, Hard(), 32), [[18, 4], [2, 17]]
    results = [outcome("kda_triton", inputs, anchors, -5.0, compiled) for compiled in (False, True)]
    return [place for place, pair in enumerate(zip(*results, strict=True)) if not torch.equal(*pair)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"errors": cases(), "changed": changed_bits()}))
