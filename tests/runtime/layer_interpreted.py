"""Runs the kernels around KDA's core in Triton's interpreter and prints errors against the plain forms, as JSON.

A script of its own: whether kernels are interpreted is decided when they are imported.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "overflow encountered in exp")  # a saturated gate: 1 / (1 + inf) is its share

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.attention.kda_scan import ScanDeltaAttention
from draftc.runtime.kda import triton_layer
from draftc.runtime.kda.layer import gated_norm, short_convolution
from draftc.runtime.memory import NoMemory
from draftc.runtime.visibility import View

EPS = 1e-5
Inputs = Mapping[str, Tensor]
Operation = Callable[..., Tensor]


def view(backend: str) -> View:
    return View(None, backend, 0.0, None)


def convolution(backend: str) -> Operation:
    return lambda rows, weight: short_convolution(rows, weight, view(backend))


def norm(backend: str) -> Operation:
    return lambda out, gate, weight: gated_norm(out, gate, weight, EPS, view(backend))


def drawn(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype] | None = None) -> dict[str, Tensor]:
    """Leaves of these shapes, float32 unless named otherwise."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes.values())))
    made = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return {name: x.to((dtypes or {}).get(name, torch.float32)).requires_grad_() for name, x in made.items()}


def rows_and_taps(blocks: int, length: int, channels: int, taps: int, **dtypes: torch.dtype) -> Inputs:
    return drawn({"rows": (blocks, length, channels), "weight": (channels, taps)}, dtypes)


def heads_and_gate(blocks: int, rows: int, heads: int, width: int, **dtypes: torch.dtype) -> Inputs:
    shape = (blocks, rows, heads, width)
    return drawn({"out": shape, "gate": shape, "weight": (width,)}, dtypes)


def outcome(function: Operation, inputs: Inputs) -> dict[str, Tensor]:
    """The result and the gradient of every input, by name."""
    made = function(*inputs.values())
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(made.dtype)
    grads = torch.autograd.grad(made, list(inputs.values()), weight)
    assert made.dtype == next(iter(inputs.values())).dtype
    assert [x.dtype for x in inputs.values()] == [x.dtype for x in grads]
    return {"made": made.detach(), **{f"d{n}": x for n, x in zip(inputs, grads, strict=True)}}


def exact(inputs: Inputs) -> Inputs:
    return {name: x.detach().double().requires_grad_() for name, x in inputs.items()}


def errors(operation: Callable[[str], Operation], inputs: Inputs) -> dict[str, float]:
    """Norms of differences to the plain form in float64, relative to the norms of its results."""
    want = outcome(operation("kda_block"), exact(inputs))
    got = outcome(operation("kda_triton"), inputs)
    return {name: ((got[name] - x).norm() / x.norm().clamp_min(1e-30)).item() for name, x in want.items()}


def convolution_cases() -> dict[str, dict[str, float]]:
    found = {}
    for rows in (1, 2, 7, 8, 16, 31, 32, 100):
        for taps in (1, 2, 4):
            found[f"{rows} rows, {taps} taps"] = errors(convolution, rows_and_taps(2, rows, 70, taps))
    found["two groups of channels"] = errors(convolution, rows_and_taps(2, 5, 300, 4))
    found["more taps than rows"] = errors(convolution, rows_and_taps(2, 3, 8, 8))
    found["pieces in turn"] = errors(convolution, rows_and_taps(5, 40, 8, 3))
    return found


def norm_cases() -> dict[str, dict[str, float]]:
    found = {f"{width} channels": errors(norm, heads_and_gate(2, 7, 3, width)) for width in (64, 96, 128, 256)}
    found["tiles in turn"] = errors(norm, heads_and_gate(5, 8, 5, 128))
    return found


def narrow_cases() -> dict[str, dict[str, float]]:
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        for weight in (dtype, torch.float32):
            name = f"{str(dtype)[6:]}, weight {str(weight)[6:]}"
            inputs = rows_and_taps(2, 16, 40, 4, rows=dtype, weight=weight)
            found[f"convolution {name}"] = errors(convolution, inputs)
            inputs = heads_and_gate(2, 8, 2, 128, out=dtype, gate=dtype, weight=weight)
            found[f"norm {name}"] = errors(norm, inputs)
    return found


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Names of results that differ in a bit."""
    return [name for name, x in first.items() if not torch.equal(x, second[name])]


def strided(inputs: Inputs) -> Inputs:
    return {name: torch.stack([x, x], -1)[..., 0].detach().requires_grad_() for name, x in inputs.items()}


def among_nans(inputs: Inputs) -> Inputs:
    """The same numbers, contiguous, with NaN before and behind them in memory."""
    found = {}
    for name, x in inputs.items():
        room = torch.full((x.numel() + 2048,), torch.nan, dtype=x.dtype)
        room[1024:-1024] = x.detach().flatten()
        found[name] = room[1024:-1024].view(x.shape).requires_grad_()
    return found


def exact_cases(function: Operation, inputs: Inputs) -> dict[str, list[str]]:
    """Names of results that change where nothing may change."""
    want = outcome(function, inputs)
    found = {"repeated": [name for _ in range(3) for name in equal(want, outcome(function, inputs))]}
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    found["poisoned"] = equal(want, outcome(function, inputs))
    torch.use_deterministic_algorithms(False)
    found["among nans"] = equal(want, outcome(function, among_nans(inputs)))
    found["strided"] = equal(want, outcome(function, strided(inputs)))
    found["checkpointed"] = equal(want, outcome(lambda *x: checkpoint(function, *x, use_reentrant=False), inputs))
    found["compiled"] = equal(want, outcome(torch.compile(function, fullgraph=True, backend="aot_eager"), inputs))
    with torch.no_grad():
        again = [function(*inputs.values()) for _ in range(2)]
    found["without gradients"] = ["made" for x in again if not torch.equal(x, want["made"])]
    return found


def empty_cases() -> dict[str, list[str]]:
    """Names of results that are not zero where there is no row at all."""
    found = {}
    cases = {
        "no rows": (convolution, rows_and_taps(2, 0, 8, 4)),
        "no blocks": (convolution, rows_and_taps(0, 3, 8, 4)),
        "no heads": (norm, heads_and_gate(0, 3, 2, 64)),
    }
    for name, (operation, inputs) in cases.items():
        got = outcome(operation("kda_triton"), inputs)
        found[name] = [n for n, x in got.items() if x.abs().sum() != 0]
        found[name] += [n for n, x in inputs.items() if got[f"d{n}"].shape != x.shape]
    return found


def layer_cases() -> dict[str, dict[str, float]]:
    """Differences of whole layers on kernels to layers on plain operations, output and every gradient."""
    found = {}
    for kind in (DeltaAttention, ScanDeltaAttention):
        torch.manual_seed(3)
        layer = kind(24, 2, 32, 3, -5.0, True, EPS, 4)
        block, context = torch.randn(1, 8, 24), torch.randn(1, 9, 24)
        anchors = torch.tensor([[2, 7]])
        want = layer_outcome(layer, "kda_block", block, context, anchors)
        got = {kind.__name__: layer_outcome(layer, "kda_triton", block, context, anchors)}
        if kind is DeltaAttention:  # the other plans its scan outside of the graph
            layer.compile(fullgraph=True, backend="aot_eager")
            got["compiled"] = layer_outcome(layer, "kda_triton", block, context, anchors)
        for name, each in got.items():
            found[name] = {n: ((each[n] - x).norm() / x.norm().clamp_min(1e-30)).item() for n, x in want.items()}
    return found


def layer_outcome(
    layer: DeltaAttention, backend: str, block: Tensor, context: Tensor, anchors: Tensor
) -> dict[str, Tensor]:
    block, context = (x.clone().requires_grad_() for x in (block, context))
    layer.zero_grad()
    made = layer(block, context, anchors, None, view(backend), NoMemory())
    made.square().sum().backward()
    grads = {name: x.grad for name, x in layer.named_parameters()}
    wanted = {"block": block.grad, "context": context.grad, **grads}
    return {"made": made.detach(), **{name: x for name, x in wanted.items() if x is not None}}


def main() -> None:
    triton_layer.CONVOLUTION_WALKS, triton_layer.NORM_WALKS = 4, 3  # so that small cases take turns
    exact_by_operation = {
        "convolution": exact_cases(convolution("kda_triton"), rows_and_taps(3, 37, 20, 4)),
        "norm": exact_cases(norm("kda_triton"), heads_and_gate(3, 5, 3, 96)),
    }
    found = {
        "convolution": convolution_cases(),
        "norm": norm_cases(),
        "narrow": narrow_cases(),
        "layer": layer_cases(),
        "exact": exact_by_operation,
        "empty": empty_cases(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
