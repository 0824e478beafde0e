"""The backends of KDA, and what each refuses. Imports no tensor library and no backend."""

from draftc.runtime.attend.registry import refuse_old_card
from draftc.runtime.request import Backend, BackendRequest, Refusal

FLA_HEAD_DIM = 256
FLA_LOWEST_BOUND = -5.0
FLA_CAPABILITY = (8, 0)
FLA_VERSION = (0, 5, 1)
TRITON_CAPABILITY = (8, 0)  # the first cards that multiply bfloat16
TRITON_VERSION = (3, 4)
TRITON_ROWS = (2, 32)  # of a block
TRITON_HEAD_STEP, TRITON_HEAD_DIM = 32, 256
TRITON_LOWEST_BOUND = -10.0  # e^(8 bound) has to be a float32 number
GLUON_CAPABILITY = (9, 0)
GLUON_VERSION, GLUON_UNKNOWN_VERSION = (3, 6), (3, 9)
GLUON_ROWS = (8, 16)
GLUON_HEAD_DIM = 128
GLUON_LOWEST_BOUND = -9.0


def refuse_kda_recurrent(request: BackendRequest) -> tuple[Refusal, ...]:  # noqa: ARG001 - one signature for all
    """Nothing: plain tensor operations in any dtype on any device."""
    return ()


def refuse_kda_block(request: BackendRequest) -> tuple[Refusal, ...]:  # noqa: ARG001 - one signature for all
    """Nothing: plain tensor operations in any dtype on any device."""
    return ()


def refuse_kda_fla(request: BackendRequest) -> tuple[Refusal, ...]:
    """Every reason why fla-core's `chunk_kda` cannot run the request."""
    return (*refuse_fla_place(request), *refuse_fla_sizes(request))


def refuse_fla_place(request: BackendRequest) -> tuple[Refusal, ...]:
    """Reasons in the machine: device, card, packages."""
    reasons = []
    if request.device != "cuda":
        reasons.append(Refusal("device", f"chunk_kda runs on cuda, not on {request.device}"))
    reasons += refuse_old_card(request, FLA_CAPABILITY)
    reasons += [
        Refusal("package", f"needs {package}, an optional package (--package {package})")
        for package in ("fla-core", "triton")
        if request.packages.get(package) is None
    ]
    version = request.packages.get("fla-core")
    if version is not None and release(version) < FLA_VERSION:
        need = ".".join(map(str, FLA_VERSION))
        reasons.append(
            Refusal("version", f"fla-core {version} is older than {need}: its gate stays outside the kernel")
        )
    return tuple(reasons)


def refuse_fla_sizes(request: BackendRequest) -> tuple[Refusal, ...]:
    """Reasons in the layer: dtype, widths, gate."""
    reasons = []
    if request.dtype == "float64":
        reasons.append(Refusal("dtype", "chunk_kda has no float64: it computes in float32"))
    if max(request.q_dim, request.v_dim) > FLA_HEAD_DIM:
        reasons.append(Refusal("head-dim", f"head_dim {request.q_dim} exceeds {FLA_HEAD_DIM}"))
    bound = request.gate_lower_bound
    if bound is not None and not FLA_LOWEST_BOUND <= bound < 0:
        reasons.append(Refusal("gate-bound", f"gate_lower_bound {bound:g} is outside [{FLA_LOWEST_BOUND:g}, 0)"))
    return tuple(reasons)


def refuse_kda_triton(request: BackendRequest) -> tuple[Refusal, ...]:
    """Every reason why the plain Triton kernels cannot run the request."""
    reasons = list(refuse_triton_place(request, TRITON_CAPABILITY, TRITON_VERSION))
    least, most = TRITON_ROWS
    if not least <= request.block_size <= most:
        reasons.append(Refusal("block-size", f"block_size {request.block_size} is outside [{least}, {most}]"))
    width = request.q_dim
    if width % TRITON_HEAD_STEP or width > TRITON_HEAD_DIM:
        text = f"head_dim {width} is no multiple of {TRITON_HEAD_STEP} up to {TRITON_HEAD_DIM}"
        reasons.append(Refusal("head-dim", text))
    if request.dtype == "float64":
        reasons.append(Refusal("dtype", "the kernels have no float64: they compute in float32"))
    return (*reasons, *refuse_low_bound(request, TRITON_LOWEST_BOUND))


def refuse_kda_gluon(request: BackendRequest) -> tuple[Refusal, ...]:
    """Every reason why the Gluon kernels, which know one width and two block lengths, cannot run the request."""
    reasons = list(refuse_triton_place(request, GLUON_CAPABILITY, GLUON_VERSION))
    if request.device == "cuda" and request.capability is None:
        need = ".".join(map(str, GLUON_CAPABILITY))
        reasons.append(Refusal("capability", f"the card is not known; compute capability {need} is needed"))
    version = request.packages.get("triton")
    if version is not None and release(version) >= GLUON_UNKNOWN_VERSION:
        known = ".".join(map(str, GLUON_UNKNOWN_VERSION))
        reasons.append(Refusal("version", f"triton {version}: Gluon moves, and is known up to before {known}"))
    if request.block_size not in GLUON_ROWS:
        reasons.append(Refusal("block-size", f"block_size {request.block_size} is none of {GLUON_ROWS}"))
    if request.q_dim != GLUON_HEAD_DIM:
        reasons.append(Refusal("head-dim", f"head_dim {request.q_dim} is not {GLUON_HEAD_DIM}"))
    if request.dtype != "bfloat16":
        reasons.append(Refusal("dtype", f"the kernels compute in bfloat16, not {request.dtype}"))
    if request.context_state == "scan":
        reasons.append(Refusal("state", "context_state is scan; the kernels start every block from a zero state"))
    if request.phase == "decoding" and request.block_size == GLUON_ROWS[0]:
        reasons.append(Refusal("rows", f"one block of {GLUON_ROWS[0]} rows does not fill a tile of {GLUON_ROWS[1]}"))
    return (*reasons, *refuse_low_bound(request, GLUON_LOWEST_BOUND))


def refuse_triton_place(
    request: BackendRequest, capability: tuple[int, int], version: tuple[int, int]
) -> tuple[Refusal, ...]:
    """Reasons in the machine: device, card below `capability`, Triton missing or older than `version`."""
    reasons = []
    if request.device != "cuda":
        reasons.append(Refusal("device", f"the kernels run on cuda, not on {request.device}"))
    reasons += refuse_old_card(request, capability)
    have = request.packages.get("triton")
    if have is None:
        reasons.append(Refusal("package", "needs triton, which a torch for CUDA brings"))
    elif release(have) < version:
        reasons.append(Refusal("version", f"triton {have} is older than {'.'.join(map(str, version))}"))
    return tuple(reasons)


def refuse_low_bound(request: BackendRequest, lowest: float) -> tuple[Refusal, ...]:
    """A bound whose powers would leave float32."""
    bound = request.gate_lower_bound
    if bound is None or lowest <= bound < 0:
        return ()
    return (Refusal("gate-bound", f"gate_lower_bound {bound:g} is outside [{lowest:g}, 0)"),)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `0.6.0rc1` -> (0, 6, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def kda_functions(name: str) -> dict[str, str]:
    """Where backend `kda_<name>` keeps the function of either operation."""
    return {"kda": f"kda.{name}:kda_{name}", "kda_states": f"kda.{name}:states_{name}"}


KDA_BACKENDS: tuple[Backend, ...] = (
    Backend("kda_gluon", kda_functions("gluon"), {"cuda": 50}, refuse_kda_gluon),
    Backend("kda_triton", kda_functions("triton"), {"cuda": 40}, refuse_kda_triton),
    Backend("kda_fla", kda_functions("fla"), {"cuda": 30}, refuse_kda_fla),
    Backend("kda_block", kda_functions("block"), {"cpu": 20, "cuda": 20}, refuse_kda_block),
    Backend("kda_recurrent", kda_functions("recurrent"), {"cpu": 10, "cuda": 10}, refuse_kda_recurrent),
)
