"""Kinds on a CUDA card: do their backends and forms agree, what does a form cost: `python bench/gpu_kinds.py`.

KDA: every backend against the recurrence in float64, outputs, gradients and states before anchors, in float32 and
bfloat16. Latent attention: both forms of a decoding step against each other, with times. Layers: whole layers of
shipped layouts by one backend against another, outputs and gradients. Without a card the same runs on the CPU in small
sizes, and what needs one is left out with its reason. Folder and sections as for the other scripts.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from clock import take_first_candidates
from record import Section, run_sections
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

import draftc
from draftc.compiler.build import attention_module, decoding_form, turn_of
from draftc.runtime.kda import kda, kda_states
from draftc.runtime.rope import rope_table
from draftc.runtime.visibility import View
from draftc.spec.layout import Layout, Mla

MLA_LAYOUTS = ("deepseek-v3-mla-dflash", "kimi-k3-mla-dflash", "mla-full-gqa-sliding")
KDA_LAYOUTS = ("qwen3-4b-kda-scan", "qwen3-4b-2kda-3gqa")
# fp32: largest difference of outputs, and of gradients relative to the largest entry of each. bf16: of the norm, since
# every value on the way is rounded to 8 bits; gate parameters are sums that cancel.
FORWARD, GRADIENT, ROUNDED = 3e-4, 1e-6, 2e-2
THREE_TF32 = 1e-5  # gradients of kda_triton, whose products are three of tf32
TF32 = 5e-3  # outputs and gradients of kda_fla, whose products are one of tf32
LONG = 3  # times the limit, for states that up to 1,024 rows of context rounded
DTYPES = (torch.float32, torch.bfloat16)
NAMES = ("out", "q", "k", "v", "decay", "beta", "A_log", "dt_bias", "state")


@dataclass(frozen=True)
class Sizes:
    """How much to run: KDA blocks, rows of a block, heads and channels; cached rows of a decoding step."""

    blocks: int
    rows: int
    heads: int
    width: int
    cached: int


CARD, DRY = Sizes(128, 16, 16, 128, 2048), Sizes(6, 8, 2, 16, 40)
PLAIN, PEER = ("kda_recurrent", "kda_block", "kda_triton"), ("kda_fla",)


def kda_inputs(sizes: Sizes, with_state: bool, dtype: torch.dtype, device: str) -> list[Tensor | None]:
    """q, k, v, decay, beta in `dtype`; A_log, dt_bias and the state in float32, rounded as the operation rounds."""
    torch.manual_seed(0)
    shape = (sizes.blocks, sizes.rows, sizes.heads, sizes.width)
    made = [torch.randn(*shape, device=device) for _ in range(4)] + [torch.randn(*shape[:3], device=device)]
    rate = torch.rand(sizes.heads, device=device).mul_(15).add_(1).log_().to(dtype).float()
    bias = (torch.randn(sizes.heads * sizes.width, device=device) * 0.5).to(dtype).float()
    state = torch.randn(sizes.blocks, sizes.heads, sizes.width, sizes.width, device=device) if with_state else None
    found = [*(value.to(dtype) for value in made), rate, bias, state]
    return [None if value is None else value.requires_grad_() for value in found]


def with_gradients(run: Callable[..., Tensor], inputs: list[Tensor | None]) -> list[Tensor]:
    """The result of `run(*inputs)` and the gradients of a fixed projection of it, in float64."""
    out = run(*inputs)
    leaves = [value for value in inputs if value is not None]
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).double()
    grads = torch.autograd.grad((out.double() * weight).sum(), leaves, allow_unused=True)
    return [out.detach().double(), *(torch.zeros(1) if grad is None else grad.double() for grad in grads)]


def verdict(
    wanted: list[Tensor], found: list[Tensor], dtype: torch.dtype, limits: tuple[float, float]
) -> dict[str, Any]:
    """The largest errors of the output and of the gradients, and whether they are within `limits`."""
    pairs = list(zip(wanted, found, strict=True))
    if dtype is torch.float32:
        forward = float((pairs[0][0] - pairs[0][1]).abs().max())
        grads = [float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)) for a, b in pairs[1:]]
    else:
        forward, *grads = (float((a - b).norm() / a.norm().clamp_min(1e-30)) for a, b in pairs)
    worst, name = max(zip(grads, NAMES[1:], strict=False))
    agrees = forward <= limits[0] and worst <= limits[1]
    return {"agrees": agrees, "forward": f"{forward:.1e}", "gradients": f"{worst:.1e} ({name})", "limits": limits}


def limits_of(backend: str, dtype: torch.dtype) -> tuple[float, float]:
    """How far outputs and gradients of `backend` may be from the recurrence in float64."""
    if dtype is not torch.float32:
        return ROUNDED, 3 * ROUNDED
    if backend == "kda_fla":
        return TF32, TF32
    return FORWARD, THREE_TF32 if backend == "kda_triton" else GRADIENT


def core(bound: float | None, backend: str, *inputs: Tensor | None) -> Tensor:
    """`kda` by `backend`."""
    return kda(*inputs, View(None, backend, 0.0, None), bound)


def states(bound: float | None, anchors: Tensor, backend: str, *inputs: Tensor | None) -> Tensor:
    """`kda_states` by `backend`; the queries are not read."""
    return kda_states(*inputs[1:], anchors, View(None, backend, 0.0, None), bound)


def kda_agreements(backends: tuple[str, ...], sizes: Sizes, device: str) -> Section:
    """Compare backends with the recurrence, for both gates, with and without a state."""
    for dtype, bound in itertools.product(DTYPES, (-5.0, None)):
        word = f"{str(dtype).removeprefix('torch.')}, bound {bound}"
        for state in (False, True):
            compare = partial(core_agreement, state, sizes, dtype, bound, device)
            yield from compared_cases(f"{word}, state {state}", backends, compare)
        yield from compared_cases(f"{word}, states", backends, partial(states_agreement, sizes, dtype, bound, device))


def peer_agreements(sizes: Sizes, device: str) -> Section:
    """Compare kda_fla, on the first candidates of its kernels: which is fastest does not matter here."""
    if device == "cuda":
        take_first_candidates()
    yield from kda_agreements(PEER, sizes, device)


def compared_cases(case: str, backends: tuple[str, ...], compare: Callable[[str], Any]) -> Section:
    """Each of `backends` in `case`, or why it takes no part."""
    for backend in backends:
        reason = not_run(backend)
        yield f"{case}, {backend}", partial(str, reason) if reason else partial(compare, backend)


def core_agreement(
    with_state: bool, sizes: Sizes, dtype: torch.dtype, bound: float | None, device: str, backend: str
) -> dict[str, Any]:
    """Compare a pass over independent blocks."""
    inputs = kda_inputs(sizes, with_state, dtype, device)
    return against_recurrence(partial(core, bound), inputs, dtype, backend, limits_of(backend, dtype))


def states_agreement(
    sizes: Sizes, dtype: torch.dtype, bound: float | None, device: str, backend: str
) -> dict[str, Any]:
    """Compare the states before 16 random anchors in each of two rows of context."""
    rows = sizes.cached // 2
    inputs = kda_inputs(Sizes(2, rows, sizes.heads, sizes.width, sizes.cached), True, dtype, device)
    anchors = torch.randint(0, rows + 1, (2, 16), device=device)
    forward, gradient = limits_of(backend, dtype)
    limits = (forward, gradient * LONG if dtype is torch.float32 else gradient)
    return against_recurrence(partial(states, bound, anchors), inputs, dtype, backend, limits)


def against_recurrence(
    run: Callable[..., Tensor],
    inputs: list[Tensor | None],
    dtype: torch.dtype,
    backend: str,
    limits: tuple[float, float],
) -> dict[str, Any]:
    """Compare `run(backend, *inputs)` with the recurrence on float64 copies of `inputs`."""
    wide = [None if value is None else value.detach().double().requires_grad_() for value in inputs]
    wanted = with_gradients(partial(run, "kda_recurrent"), wide)
    return verdict(wanted, with_gradients(partial(run, backend), inputs), dtype, limits)


def not_run(backend: str) -> str | None:
    """Why `backend` takes no part, if so."""
    needs_card = backend in ("kda_triton", "kda_fla") and not torch.cuda.is_available()
    return "not run: needs a card" if needs_card else None


class Step:
    """A decoding step of one latent attention behind `cached` rows: one row of context is new, then a block."""

    def __init__(self, layout: Layout, spec: Mla, cached: int, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            plain = attention_module(spec, layout).to(dtype)
        absorbed = decoding_form(plain)
        self.forms: dict[str, nn.Module] = {"expanded": plain, "absorbed": absorbed}
        self.block = torch.randn(1, layout.block_size, layout.hidden_size, device=device, dtype=dtype)
        self.context = torch.randn(1, cached + 1, layout.hidden_size, device=device, dtype=dtype)
        self.turn = turn_of(spec, layout)
        self.memory = DynamicLayer()
        self.run("expanded", self.context[:, :cached], 0)

    def run(self, form: str, context: Tensor, first: int) -> Tensor:
        """Run `form` on `context` rows that start at position `first`, and forget what it kept of block and context."""
        kept = self.memory.get_seq_length()
        rows = context.shape[1] + self.block.shape[1]
        positions = first + torch.arange(rows, device=context.device)[None]
        rope = None if self.turn is None else rope_table(self.turn, positions)
        anchors = torch.full((1, 1), context.shape[1], device=context.device)
        with torch.no_grad():
            out: Tensor = self.forms[form](
                self.block, context, anchors, rope, View(None, "sdpa", 0.0, None), self.memory
            )
        self.memory.crop(-self.block.shape[1] if not kept else -rows)
        return out

    def last(self, form: str) -> Tensor:
        """The step behind all cached rows."""
        return self.run(form, self.context[:, -1:], self.context.shape[1] - 1)


def milliseconds(step: Callable[[], object], device: str, repeats: int = 9) -> float:
    """The median time of `step` after two warm-ups."""
    times = []
    for number in range(repeats + 2):
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        if number > 1:
            times.append(time.perf_counter() - began)
    return round(1e3 * sorted(times)[repeats // 2], 3)


def form_agreements(sizes: Sizes, device: str) -> Section:
    """Compare the forms of a decoding step of each layout's latent attention, and time them."""
    for name in MLA_LAYOUTS:
        for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, ROUNDED)):
            word = f"{name} {str(dtype).removeprefix('torch.')}"
            yield word, partial(form_agreement, name, dtype, limit, sizes, device)


def form_agreement(name: str, dtype: torch.dtype, limit: float, sizes: Sizes, device: str) -> dict[str, Any]:
    """Compare both forms behind the cached rows."""
    layout = draftc.load(name)
    spec = next(each for each in layout.attentions.values() if isinstance(each, Mla))
    step = Step(layout, spec, sizes.cached, device, dtype)
    expanded, absorbed = (step.last(form).float() for form in ("expanded", "absorbed"))
    error = float((expanded - absorbed).norm() / expanded.norm())
    times = {form: milliseconds(partial(step.last, form), device) for form in step.forms}
    return {"agrees": error <= limit, "error": f"{error:.1e}", "ms": times}


def layer_agreements(device: str) -> Section:
    """Compare whole layers, outputs and gradients: MLA on sdpa and flex with eager, KDA with the recurrence."""
    if device == "cpu":
        return
    from gpu_step import agreement, runs_of

    for name in MLA_LAYOUTS:
        yield name, partial(agreement, name, runs_of("sdpa", "flex"), "eager")
    for name in KDA_LAYOUTS:
        yield name, partial(agreement, name, runs_of("kda_block", "kda_triton"), "kda_recurrent")


def main() -> None:
    """Measure on the card, or in small sizes on the CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = CARD if device == "cuda" else DRY
    torch.backends.cuda.matmul.allow_tf32 = False
    sections = {
        "kda": partial(kda_agreements, PLAIN, sizes, device),
        "peer": partial(peer_agreements, sizes, device),
        "forms": partial(form_agreements, sizes, device),
        "layers": partial(layer_agreements, device),
    }
    run_sections("gpu_kinds", sections)


if __name__ == "__main__":
    main()
