"""The backends of KDA, and what each refuses. Imports no tensor library and no backend."""

from draftc.runtime.attend.registry import refuse_old_card
from draftc.runtime.request import Backend, BackendRequest, Refusal

FLA_HEAD_DIM = 256
FLA_LOWEST_BOUND = -5.0
FLA_CAPABILITY = (8, 0)
FLA_VERSION = (0, 5, 1)


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
    Backend("kda_fla", kda_functions("fla"), {"cuda": 30}, refuse_kda_fla),
    Backend("kda_block", kda_functions("block"), {"cpu": 20, "cuda": 20}, refuse_kda_block),
    Backend("kda_recurrent", kda_functions("recurrent"), {"cpu": 10, "cuda": 10}, refuse_kda_recurrent),
)
