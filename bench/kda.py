"""Kimi delta attention on a CUDA card: core, layer, hybrid draft: `python bench/kda.py [folder [section]]`.

Core: 512 blocks of 16 rows, 32 heads of 128 channels, bf16, every backend that the card does not refuse, beside a
kernel that only moves the same bytes (the floor) and fla-core's `chunk_kda` where that is installed. `kernel_us` is the
median of replays of a CUDA graph, `call_ms` that of eager calls between two synchronisations, which is host time as
well. Errors are norms of differences to the recurrence in float32, relative to the norms of its results.

Layer: DeltaAttention at Qwen3-4B width, with everything around the core; and one short convolution and the gated norm
on their own, by plain operations, by this project's kernels and by fla-core's. Hybrid: 2 KDA (16 heads) and 3 GQA
layers against 5 GQA layers of Qwen3-4B size, one training step on 4,096 context rows and 512 blocks of 16.

Scan: the states before 512 sorted anchors in 4,096 context rows, 16 heads, by every backend that finds them in its own
way; errors on 1,024 rows with 64 anchors and 4 heads.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from clock import call_ms, elapsed, peak_gib, tune_briefly
from record import Section, run_sections
from torch import Tensor

import draftc
from draftc.compiler.passes.select import with_packages
from draftc.compiler.program import Options
from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.kda import kda, kda_states
from draftc.runtime.kda.layer import gated_norm, short_convolution
from draftc.runtime.kda.registry import KDA_BACKENDS
from draftc.runtime.kda.states import ScanPlan, plan_states
from draftc.runtime.memory import NoMemory
from draftc.runtime.request import BackendRequest
from draftc.runtime.visibility import View

BLOCKS, HEADS, WIDTH, HIDDEN, CONTEXT = 512, 32, 128, 2560, 4096
BOUNDS = {"bounded": -5.0, "unbounded": None}
KERNELS = ("kda_gluon", "kda_triton")
NAMES = ("out", "q", "k", "v", "decay", "beta", "A_log", "dt_bias")
SCANS = ("kda_triton", "kda_block", "kda_fla")
STATE_NAMES = ("states", *NAMES[2:], "state")


def view(backend: str) -> View:
    return View(None, backend, 0.0, None)


def core_inputs(rows: int, blocks: int = BLOCKS, heads: int = HEADS, common: float = 0.0) -> list[Tensor]:
    """Fresh leaves: q, k, v, decay `[M, T, h, d]`, beta `[M, T, h]` in bf16; A_log, dt_bias in float32.

    `common` is the share that all keys of a block have in common.
    """
    draw = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    wide = [draw(blocks, rows, heads, WIDTH).bfloat16() for _ in range(4)]
    wide[1] = (wide[1] * (1 - common) + draw(blocks, 1, heads, WIDTH) * common).bfloat16()
    rate = (torch.rand(heads, device="cuda") * 15 + 1).log()
    made = [*wide, draw(blocks, rows, heads).bfloat16(), rate, draw(heads * WIDTH) * 0.5]
    return [x.requires_grad_() for x in made]


def call(backend: str, inputs: list[Tensor], bound: float | None) -> Tensor:
    return kda(*inputs, None, view(backend), bound)


def both_ways(backend: str, inputs: list[Tensor], bound: float | None, dout: Tensor) -> tuple[Tensor, ...]:
    out = call(backend, inputs, bound)
    return out, *torch.autograd.grad(out, inputs, dout)


def able(rows: int, bound: float | None) -> tuple[str, ...]:
    """Backends that this card refuses nothing of, best first, without the step-by-step oracle."""
    request = BackendRequest(
        op="kda", phase="training", device="cuda", dtype="bfloat16", q_dim=WIDTH, v_dim=WIDTH, heads=HEADS,
        kv_heads=HEADS, block_size=rows, capability=torch.cuda.get_device_capability(), context_state="reset",
        gate_lower_bound=bound, packages=packages(),
    )  # fmt: skip
    return tuple(b.name for b in KDA_BACKENDS if b.name != "kda_recurrent" and not b.refuse(request))


def packages() -> dict[str, str | None]:
    """Versions of the packages here that backends ask for."""
    return with_packages([]) | {"triton": torch_triton(), "fla-core": fla_version()}


def torch_triton() -> str:
    import triton

    return triton.__version__


def fla_version() -> str | None:
    try:
        import fla
    except ImportError:
        return None
    return fla.__version__


def kernel_us(step: Callable[[], object], calls: int = 10, replays: int = 7) -> float:
    """Microseconds of `step` on the card: a graph of `calls`, the median of `replays`."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            step()
    times = [elapsed(graph.replay) / calls for _ in range(replays)]
    return round(statistics.median(times) * 1e3, 1)


def floor_us() -> dict[str, float]:
    """What moving the bytes alone takes: 4 tensors in and 1 out forward, 5 in and 4 out backward."""
    from stream import stream

    part = torch.zeros(1, BLOCKS * 16 * HEADS * WIDTH, dtype=torch.bfloat16, device="cuda")
    rows = {count: part.repeat(count, 1) for count in (1, 4, 5)}
    written = part.repeat(4, 1)
    return {
        "forward_us": kernel_us(lambda: stream(rows[4], rows[1])),
        "backward_us": kernel_us(lambda: stream(rows[5], written)),
    }


def accuracy(rows: int, bound: float | None, backend: str, common: float = 0.0) -> dict[str, float]:
    """Errors of output and gradients, and whether a second run gave the same bits."""
    inputs = core_inputs(rows, 64, HEADS, common)
    dout = torch.randn_like(inputs[2]).detach()
    exact = [x.detach().float().requires_grad_() for x in inputs[:5]]
    exact += [x.detach().bfloat16().float().requires_grad_() for x in inputs[5:]]
    want = both_ways("kda_recurrent", exact, bound, dout.float())
    got, again = (both_ways(backend, inputs, bound, dout) for _ in range(2))
    found = {
        n: float(f"{((a.float() - b).norm() / b.norm()).item():.1e}") for n, a, b in zip(NAMES, got, want, strict=True)
    }
    return {**found, "repeatable": all(torch.equal(a, b) for a, b in zip(got, again, strict=True))}


def core_times(rows: int, bound: float | None, backend: str) -> dict[str, float]:
    inputs = core_inputs(rows, blocks=BLOCKS * 16 // rows)
    dout = torch.randn_like(inputs[2]).detach()

    def forward() -> None:
        with torch.no_grad():
            call(backend, inputs, bound)

    def both() -> None:
        both_ways(backend, inputs, bound, dout)

    found = {"forward_call_ms": call_ms(forward), "call_ms": call_ms(both)}
    if backend in KERNELS:
        found |= {"forward_kernel_us": kernel_us(forward), "kernel_us": kernel_us(both)}
    return found


def core_case(rows: int, bound: float | None, backend: str) -> dict[str, Any]:
    return {"errors": accuracy(rows, bound, backend), **core_times(rows, bound, backend)}


def core() -> Section:
    """Floor, our kernels, and then the others, whose tuning takes minutes."""
    yield "floor", floor_us
    for name, bound in BOUNDS.items():
        for rows in (16, 8):
            for backend in KERNELS:
                yield f"{name}, blocks of {rows}, {backend}", partial(core_case, rows, bound, backend)
    for backend in others(-5.0):
        yield f"bounded, blocks of 16, {backend}", partial(core_case, 16, -5.0, backend)


def others(bound: float | None) -> tuple[str, ...]:
    """Backends of the card that are not our kernels, fla-core's last."""
    return tuple(sorted((name for name in able(16, bound) if name not in KERNELS), key="kda_fla".__eq__))


def other_lengths() -> Section:
    """Errors of the plain kernels where blocks are padded or ragged."""
    for name, bound in BOUNDS.items():
        for rows in (2, 7, 31, 32):
            yield f"{name}, blocks of {rows}", partial(accuracy, rows, bound, "kda_triton")


def correlated_keys() -> Section:
    """Errors where nine tenths of every key are the same, so that triangular systems are far from the identity."""
    for name, bound in BOUNDS.items():
        for backend in (*KERNELS, "kda_block"):
            yield f"{name}, {backend}", partial(accuracy, 16, bound, backend, 0.9)


def layer() -> Section:
    """Forward and backward of the whole attention, by backend, eager and compiled, and of its parts."""
    module = DeltaAttention(HIDDEN, HEADS, WIDTH, 4, -5.0, False, 1e-6, 16).to("cuda", torch.bfloat16)
    rows = torch.randn(1, BLOCKS * 16, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    forms = [(part, form) for part, found in part_forms().items() for form in found]
    for part, form in sorted(forms, key=lambda each: each[1] == "fla-core"):
        for blocks in (BLOCKS, 1):
            yield f"{part}, {blocks} blocks, {form}", partial(part_case, part, form, blocks)
    for backend in (*KERNELS, *others(-5.0)):
        yield backend, partial(layer_times, module, rows, backend)


def part_case(part: str, form: str, blocks: int) -> dict[str, Any]:
    """Times of one short convolution of q, k or v, or of the gated norm: 512 blocks as in training, one as decoding."""
    return part_times(part_forms()[part][form], part_inputs(part, blocks))


def part_inputs(part: str, blocks: int) -> list[Tensor]:
    heads, channels = (blocks, 16, HEADS, WIDTH), HEADS * WIDTH
    shapes = [(blocks, 16, channels), (channels, 4)] if part == "convolution" else [heads, heads, (WIDTH,)]
    return [torch.randn(*shape, device="cuda").bfloat16().requires_grad_() for shape in shapes]


def part_forms() -> dict[str, dict[str, Callable[..., Tensor]]]:
    plain, kernels = view("kda_block"), view("kda_triton")
    forms: dict[str, dict[str, Callable[..., Tensor]]] = {
        "convolution": {
            "plain": lambda rows, weight: short_convolution(rows, weight, plain),
            "kernels": lambda rows, weight: short_convolution(rows, weight, kernels),
        },
        "gated norm": {
            "plain": lambda out, gate, weight: gated_norm(out, gate, weight, 1e-6, plain),
            "kernels": lambda out, gate, weight: gated_norm(out, gate, weight, 1e-6, kernels),
        },
    }
    if fla_version() is not None:
        from fla.modules.convolution import causal_conv1d
        from fla.modules.fused_norm_gate import rms_norm_gated

        forms["convolution"]["fla-core"] = lambda rows, weight: causal_conv1d(rows, weight, activation="silu")[0]
        forms["gated norm"]["fla-core"] = lambda out, gate, weight: rms_norm_gated(
            out, gate, weight, None, activation="sigmoid", eps=1e-6
        )
    return forms


def part_times(function: Callable[..., Tensor], inputs: list[Tensor]) -> dict[str, Any]:
    dout = torch.randn_like(inputs[0]).detach()

    def forward() -> None:
        with torch.no_grad():
            function(*inputs)

    def both() -> None:
        torch.autograd.grad(function(*inputs), inputs, dout)

    found: dict[str, Any] = {"forward_call_ms": call_ms(forward), "call_ms": call_ms(both)}
    return found | {"forward_kernel_us": captured_us(forward), "kernel_us": captured_us(both)}


def captured_us(step: Callable[[], object]) -> float | str:
    """`kernel_us`, or why `step` cannot be recorded as a graph."""
    try:
        return kernel_us(step)
    except RuntimeError as error:
        return str(error).splitlines()[0]


def layer_times(module: DeltaAttention, rows: Tensor, backend: str) -> dict[str, float]:
    def step() -> None:
        through(module, rows, backend).float().square().mean().backward()

    found = {"call_ms": call_ms(step, 7)}
    torch._dynamo.reset()
    compiled = torch.compile(through, fullgraph=backend != "kda_fla")

    def compiled_step() -> None:
        compiled(module, rows, backend).float().square().mean().backward()

    return found | {"compiled_call_ms": call_ms(compiled_step, 7)}


def through(module: DeltaAttention, rows: Tensor, backend: str) -> Tensor:
    return module(rows, rows, None, None, view(backend), NoMemory())


def training_step(layout: str, backend: str | None, compiled: bool) -> dict[str, float]:
    options = Options(capability=torch.cuda.get_device_capability(), backend=backend, packages=packages())
    model = draftc.compile(layout, options).model("cuda").train()
    config = model.config
    make = {"device": "cuda", "dtype": torch.bfloat16}
    noise = torch.randn(1, BLOCKS * config.block_size, config.target_hidden_size, **make)
    context = torch.randn(1, CONTEXT, config.context_width, **make)
    anchors = torch.randperm(CONTEXT - 1, device="cuda")[:BLOCKS].sort().values[None]
    if compiled:
        for each in model.layers:
            each.compile(fullgraph=backend != "kda_fla")

    def step() -> None:
        model.zero_grad(set_to_none=True)
        out = model(noise_embeds=noise, context_hidden_states=context, anchors=anchors)
        out.last_hidden_state.float().square().mean().backward()

    found = {"call_ms": call_ms(step, 5)}
    return found | {"peak_gib": peak_gib(step)}


def hybrid() -> Section:
    """The stack with KDA against that without, on our kernels and then on fla-core's."""
    for compiled in (False, True):
        form = "layers compiled" if compiled else "eager"
        yield f"{form}, 5 gqa", partial(training_step, "qwen3-4b-dflash", None, compiled)
        yield f"{form}, 2 kda 3 gqa", partial(training_step, "qwen3-4b-2kda-3gqa", None, compiled)
    if "kda_fla" in others(-5.0):
        yield "eager, 2 kda 3 gqa, kda_fla", partial(training_step, "qwen3-4b-2kda-3gqa", "kda_fla", False)


def scan_case(context: int, anchors: int, heads: int) -> tuple[list[Tensor], ScanPlan]:
    """Leaves that `kda_states` takes, a state among them, and the plan for sorted random anchors."""
    _, *rows = core_inputs(context, 1, heads)
    state = torch.randn(1, heads, WIDTH, WIDTH, device="cuda").requires_grad_()
    drawn = torch.randperm(context - 1)[:anchors].sort().values
    return [*rows, state], plan_states([drawn.tolist()], context, state.device)


def scanned(backend: str, inputs: list[Tensor], plan: ScanPlan, bound: float | None) -> Tensor:
    return kda_states(*inputs, plan.entries[None], View(None, backend, 0.0, None, plan), bound)


def scan_both_ways(
    backend: str, inputs: list[Tensor], plan: ScanPlan, bound: float | None, dstates: Tensor
) -> tuple[Tensor, ...]:
    states = scanned(backend, inputs, plan, bound)
    return states, *torch.autograd.grad(states, inputs, dstates)


def scan_errors(backend: str, bound: float | None) -> dict[str, float]:
    """Errors of the states and of every gradient."""
    inputs, plan = scan_case(1024, 64, 4)
    exact = [x.detach().float().requires_grad_() for x in inputs[:4]]
    exact += [x.detach().bfloat16().float().requires_grad_() for x in inputs[4:6]]
    exact.append(inputs[6].detach().requires_grad_())
    dstates = torch.randn(64, *inputs[6].shape[1:], device=inputs[6].device)
    want, got = (scan_both_ways(*each, plan, bound, dstates) for each in (("kda_recurrent", exact), (backend, inputs)))
    return {
        n: float(f"{((a.float() - b).norm() / b.norm()).item():.1e}")
        for n, a, b in zip(STATE_NAMES, got, want, strict=True)
    }


def scan_times(backend: str, bound: float | None) -> dict[str, float]:
    """Milliseconds of eager calls, and the memory that one forward and backward adds at its peak."""
    inputs, plan = scan_case(CONTEXT, BLOCKS, 16)
    dstates = torch.randn(BLOCKS, *inputs[6].shape[1:], device=inputs[6].device)

    def forward() -> None:
        with torch.no_grad():
            scanned(backend, inputs, plan, bound)

    def both() -> None:
        scan_both_ways(backend, inputs, plan, bound, dstates)

    found = {"forward_call_ms": call_ms(forward, 5), "call_ms": call_ms(both, 5)}
    return found | {"peak_gib": peak_gib(both)}


def scan_numbers(backend: str, bound: float | None) -> dict[str, Any]:
    return {"errors": scan_errors(backend, bound), **scan_times(backend, bound)}


def scan() -> Section:
    """The states before anchors by each backend that has them."""
    for backend in SCANS:
        for name, bound in BOUNDS.items():
            if backend in able(16, bound):
                yield f"{name}, {backend}", partial(scan_numbers, backend, bound)


SECTIONS = {
    "core": core,
    "lengths": other_lengths,
    "correlated keys": correlated_keys,
    "layer": layer,
    "hybrid": hybrid,
    "scan": scan,
}


if __name__ == "__main__":
    tune_briefly()
    run_sections("kda", SECTIONS)
