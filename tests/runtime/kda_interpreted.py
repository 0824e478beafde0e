"""Runs the Triton kernels of KDA in Triton's interpreter and prints errors against the recurrence, as JSON.

A script of its own: whether kernels are interpreted is decided when they are imported.
"""

import json
import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "overflow encountered in exp2")  # a saturated gate: 1 / (1 + inf) is its share

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from draftc.runtime.kda import kda
from draftc.runtime.visibility import View
from tests.runtime.kda_inputs import NAMES, Hard, kda_inputs

BOUNDS = {"bounded": -5.0, "unbounded": None}
Inputs = list[Tensor | None]


def by(backend: str, bound: float | None) -> Callable[..., Tensor]:
    view = View(None, backend, 0.0, None)
    return lambda *inputs: kda(*inputs, view, bound)


def outcome(function: Callable[..., Tensor], inputs: Inputs) -> dict[str, Tensor]:
    """The output and the gradient of every input, by name."""
    out = function(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(out.dtype)
    named = {name: x for name, x in zip(NAMES, inputs, strict=True) if x is not None}
    grads = torch.autograd.grad(out, list(named.values()), weight)
    return {"out": out.detach(), **dict(zip(named, grads, strict=True))}


def leaves(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Leaves whose values are numbers of `dtype`; gate parameters and state are held in float32."""
    kept = [dtype] * 5 + [torch.float32] * 3
    return [
        None if x is None else x.detach().to(dtype).to(kind).requires_grad_()
        for x, kind in zip(inputs, kept, strict=True)
    ]


def errors(inputs: Inputs, dtype: torch.dtype, bound: float | None) -> dict[str, float]:
    """Norms of differences to the recurrence in float32, relative to the norms of its results."""
    mine = leaves(inputs, dtype)
    want = outcome(by("kda_recurrent", bound), leaves(mine, torch.float32))
    got = outcome(by("kda_triton", bound), mine)
    return {name: ((got[name].float() - x).norm() / x.norm().clamp_min(1e-30)).item() for name, x in want.items()}


def float32_cases() -> dict[str, Any]:
    found = {}
    for name, bound in BOUNDS.items():
        for rows in (2, 7, 8, 16, 31, 32):
            for with_state in (False, True) if rows in (7, 16, 32) else (False,):
                batch = 11 if rows == 2 else 3  # 11 blocks of 2 and 3 of 7 or 8 leave the last tile ragged
                inputs = kda_inputs(rows, Hard(common=0.5), with_state, batch=batch, heads=1, dim=32)
                found[f"{name} {rows} {with_state}"] = errors(inputs, torch.float32, bound)
        found[f"{name} saturated"] = errors(kda_inputs(16, Hard(gate=8.0), True, dim=32), torch.float32, bound)
        found[f"{name} alike"] = errors(kda_inputs(16, Hard(common=0.9), False, dim=32), torch.float32, bound)
        found[f"{name} 96"] = errors(kda_inputs(16, Hard(), True, batch=1, dim=96), torch.float32, bound)
        found[f"{name} 256"] = errors(kda_inputs(8, Hard(), False, heads=1, dim=256), torch.float32, bound)
    return found


def narrow_cases() -> dict[str, Any]:
    found = {}
    for name, bound in BOUNDS.items():
        for dtype in (torch.bfloat16, torch.float16):
            inputs = kda_inputs(16, Hard(), dtype is torch.bfloat16, batch=2, heads=1, dim=128)
            found[f"{name} {str(dtype)[6:]}"] = errors(inputs, dtype, bound)
    return found


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """Names of results that differ in a bit."""
    return [name for name, x in first.items() if not torch.equal(x, second[name])]


def exact_cases() -> dict[str, list[str]]:
    """Names of results that change where nothing may change."""
    function = by("kda_triton", -5.0)
    inputs = leaves(kda_inputs(7, Hard(), True, dim=32), torch.float32)
    want = outcome(function, inputs)
    found = {"repeated": [name for _ in range(3) for name in equal(want, outcome(function, inputs))]}
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    found["poisoned"] = equal(want, outcome(function, inputs))
    torch.use_deterministic_algorithms(False)
    strided = [None if x is None else torch.stack([x, x], -1)[..., 0].detach().requires_grad_() for x in inputs]
    found["strided"] = equal(want, outcome(function, strided))
    found["checkpointed"] = equal(want, outcome(lambda *x: checkpoint(function, *x, use_reentrant=False), inputs))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found["compiled"] = equal(want, outcome(compiled, inputs))
    found["compiled without a state"] = equal(
        outcome(function, [*inputs[:7], None]), outcome(compiled, [*inputs[:7], None])
    )
    with torch.no_grad():
        found["without gradients"] = [] if torch.equal(function(*inputs), want["out"]) else ["out"]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"float32": float32_cases(), "narrow": narrow_cases(), "exact": exact_cases()}))
