"""Pass select: which backend runs each layer, in which phase, on which device, and why."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

import torch

from draftc.compiler.errors import BackendError, UnknownNameError
from draftc.compiler.latent_form import FormChoice, cheaper_form
from draftc.compiler.program import DEVICES, PHASES, Device, Options, PassReport, Program, operation_of
from draftc.runtime.attend.registry import ATTEND_BACKENDS
from draftc.runtime.kda.registry import KDA_BACKENDS
from draftc.runtime.request import Backend, BackendRequest, Choice, Op, Phase, Refusal
from draftc.spec.layout import Gqa, Kda, LayerSpec, Layout, Mla
from draftc.spec.suggest import ROUGHLY, did_you_mean

BACKENDS: Mapping[Op, tuple[Backend, ...]] = {"attend": ATTEND_BACKENDS, "kda": KDA_BACKENDS}
# What a plain install on a CUDA machine has: torch brings triton. Optional packages count only where they are asked
# for, so that a layout gives the same bundle on every machine.
PLAIN_PACKAGES: Mapping[str, str | None] = {"torch": "2.11", "triton": "3.6", "flash-attn": None, "fla-core": None}
OPTIONAL_PACKAGES: Mapping[str, str] = {"flash-attn": "2.8", "fla-core": "0.6"}  # with the least version that will do
Place = tuple[Phase, Device]


class Select:
    """Fill `program.choices` and `program.forms`; rewrite no graph: backends and forms compute the same values.

    Algebra: for each layer, phase and device, of the backends that refuse nothing the one with the highest priority; at
    opt 0 the one with the lowest, which is the plainest. An override wins wherever its backend refuses nothing. Latent
    attention decodes in the form that costs fewer operations for each cached row at the layout's block size, in that of
    training at opt 0 or where an override could run no other; its backends are asked about the widths of that form.
    Requires: nothing. Ensures: a choice for every layer, phase and device, with the refusals of every better backend.
    Raises `UnknownNameError` for an override that is no backend, `BackendError` when it fits no layer or is refused by
    a layer in every phase on every device.
    """

    name = "select"
    level = 0
    requires = ()

    def run(self, program: Program) -> PassReport:
        """Choose for every layer, phase and device."""
        forced = overrides(program)
        requests = _Requests(program.layout, program.options)
        for layer in program.layout.layers:
            wish = forced.get(operation_of(layer.attention))
            if wish is not None:
                _require_fit(wish, layer, requests)
            for phase in PHASES:
                for device in DEVICES:
                    request = requests.of(layer, phase, device)
                    if phase == "decoding" and isinstance(layer.attention, Mla):
                        chosen = decoding_form(layer.attention, request, wish, program.options.opt == 0)
                        program.forms[layer.index, device] = chosen
                        request = absorbed(layer.attention, request) if chosen.form == "absorbed" else request
                    program.choices[layer.index, phase, device] = choose(request, wish, program.options.opt == 0)
        return PassReport(self.name, notes=tuple(_notes(program)))


def decoding_form(spec: Mla, request: BackendRequest, wish: Backend | None, plain: bool) -> FormChoice:
    """Return the form in which latent attention decodes; `request` is that of the expanded one."""
    found = cheaper_form(spec, request.block_size, request.dtype)
    if plain and found.form == "absorbed":
        return FormChoice("expanded", "opt 0 decodes in the form that trains")
    if wish is None or found.form == "expanded" or wish.rank(request.phase, request.device) is None:
        return found
    reasons = wish.refuse(absorbed(spec, request))
    if reasons and not wish.refuse(request):
        text = "; ".join(refusal.reason for refusal in reasons)
        return FormChoice("expanded", f"--backend {wish.name} refuses the absorbed form: {text}")
    return found


def absorbed(spec: Mla, request: BackendRequest) -> BackendRequest:
    """Return `request` as the absorbed form asks: all heads read one key-value head as wide as the latent."""
    q_dim = spec.kv_lora_rank + spec.qk_rope_head_dim
    return replace(request, q_dim=q_dim, v_dim=spec.kv_lora_rank, kv_heads=1)


def choose(request: BackendRequest, wish: Backend | None, plain: bool) -> Choice:
    """Return the choice for one request: `wish` if it refuses nothing, else the best backend, or the plainest.

    Raises `BackendError` when every backend refuses.
    """
    if wish is not None and wish.rank(request.phase, request.device) is not None and not wish.refuse(request):
        return Choice(wish.name, forced_by=f"--backend {wish.name}")
    refusals: list[tuple[str, tuple[Refusal, ...]]] = []
    for backend in ranked(request, plain):
        reasons = backend.refuse(request)
        if not reasons:
            return Choice(backend.name, tuple(refusals))
        refusals.append((backend.name, reasons))
    raise BackendError(f"no backend runs {request.op} in {request.phase} on {request.device}", notes=_lines(refusals))


def ranked(request: BackendRequest, plain: bool = False) -> list[Backend]:
    """Return the backends of the request's device, best first, or plainest first."""
    ranks = [(backend.rank(request.phase, request.device), backend) for backend in BACKENDS[request.op]]
    able = [(rank, backend) for rank, backend in ranks if rank is not None]
    return [backend for _, backend in sorted(able, key=lambda pair: pair[0], reverse=not plain)]


def overrides(program: Program) -> dict[Op, Backend]:
    """Return the backend that the options force, by operation; several names are joined by commas.

    Raises `UnknownNameError` for a name that is no backend, `BackendError` when no layer runs its operation.
    """
    found: dict[Op, Backend] = {}
    known = {backend.name: (op, backend) for op, backends in BACKENDS.items() for backend in backends}
    present = {operation_of(layer.attention) for layer in program.layout.layers}
    for word in (program.options.backend or "").split(","):
        name = word.strip()
        if not name:
            continue
        if name not in known:
            hint = did_you_mean(name, known, ROUGHLY) or f"backends are {', '.join(known)}"
            raise UnknownNameError(f"there is no backend {name}", help=hint)
        op, backend = known[name]
        if op not in present:
            raise BackendError(f"{name} runs {op}, and no layer of {program.layout.name} does")
        found[op] = backend
    return found


def _require_fit(wish: Backend, layer: LayerSpec, requests: "_Requests") -> None:
    """Raise `BackendError` when the layer refuses the override everywhere."""
    refused: list[tuple[str, tuple[Refusal, ...]]] = []
    for phase in PHASES:
        for device in DEVICES:
            reasons = wish.refuse(requests.of(layer, phase, device))
            if wish.rank(phase, device) is not None and not reasons:
                return
            refused.append((f"{phase} on {device}", reasons))
    message = f"backend {wish.name} refuses layer {layer.index} ({layer.name}) in every phase on every device"
    raise BackendError(message, notes=_lines(refused), help="drop the override to let draftc choose")


class _Requests:
    """Makes the requests of one layout on one machine."""

    def __init__(self, layout: Layout, options: Options) -> None:
        self._layout = layout
        self._packages = PLAIN_PACKAGES if options.packages is None else options.packages
        self._capability = options.capability

    def of(self, layer: LayerSpec, phase: Phase, device: Device) -> BackendRequest:
        """Return what is asked of a backend for `layer`."""
        q_dim, v_dim, heads, kv_heads = _widths(layer)
        spec = layer.attention
        kda = spec if isinstance(spec, Kda) else None
        return BackendRequest(
            op=operation_of(spec),
            phase=phase,
            device=device,
            dtype=self._layout.dtype,
            q_dim=q_dim,
            v_dim=v_dim,
            heads=heads,
            kv_heads=kv_heads,
            block_size=self._layout.block_size,
            window=spec.sliding_window,
            is_causal=spec.is_causal,
            dropout=self._layout.attention_dropout if phase == "training" else 0.0,
            needs_grad=phase == "training",
            capability=self._capability if device == "cuda" else None,
            context_state=kda.context_state if kda else None,
            gate_lower_bound=kda.gate_lower_bound if kda else None,
            conv_width=kda.short_conv_kernel_size if kda else None,
            packages=self._packages,
        )


def _widths(layer: LayerSpec) -> tuple[int, int, int, int]:
    """Channels of a query and of a value, query heads, key-value heads, as the operation gets them."""
    match layer.attention:
        case Gqa(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width):
            return width, width, heads, kv_heads
        case Mla(num_attention_heads=heads) as spec:
            return spec.qk_nope_head_dim + spec.qk_rope_head_dim, spec.v_head_dim, heads, heads
        case Kda(num_heads=heads, head_dim=width):
            return width, width, heads, heads
        case unknown:
            assert_never(unknown)


def with_packages(names: Iterable[str]) -> dict[str, str | None]:
    """Return the packages of a machine that has the optional ones called `names`, in the versions installed here.

    Raises `UnknownNameError` for a name that no backend asks about.
    """
    unknown = [name for name in names if name not in OPTIONAL_PACKAGES]
    if unknown:
        raise UnknownNameError(
            f"no backend needs a package {unknown[0]}", help=f"optional packages are {', '.join(OPTIONAL_PACKAGES)}"
        )
    return {**PLAIN_PACKAGES, **{name: _version(name) or OPTIONAL_PACKAGES[name] for name in names}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def detected_capability() -> tuple[int, int] | None:
    """Compute capability of the current CUDA device, None without one; starting CUDA takes seconds."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def _notes(program: Program) -> list[str]:
    """What was chosen for each distinct attention, and where an override was passed over."""
    notes = []
    for name in program.layout.attentions:
        index = next(layer.index for layer in program.layout.layers if layer.name == name)
        places = [f"{p} {d} {program.backend(index, p, d)}" for p in PHASES for d in DEVICES]
        notes.append(f"{name}: {', '.join(places)}")
        forms = {d: program.forms[index, d] for d in DEVICES if (index, d) in program.forms}
        notes += [f"{name}: decodes {choice.form} on {device}: {choice.reason}" for device, choice in forms.items()]
    return notes


def _lines(refusals: list[tuple[str, tuple[Refusal, ...]]]) -> tuple[str, ...]:
    return tuple(
        f"{where}: {'; '.join(r.reason for r in reasons) or 'does not run there'}" for where, reasons in refusals
    )
