"""The backends of softmax attention, and what each refuses. Imports no tensor library and no backend."""

from draftc.runtime.request import Backend, BackendRequest, Refusal

NARROWEST_FLEX_HEAD = 16  # channels: the least that a matrix product of its CUDA kernels takes
WIDEST_FLEX_HEAD = 512  # channels: a tile of wider ones does not fit into shared memory
FLEX_CAPABILITY = (7, 0)
WIDEST_FLASH_HEAD = 256  # channels
FLASH_CAPABILITY = (8, 0)


def refuse_eager(request: BackendRequest) -> tuple[Refusal, ...]:  # noqa: ARG001 - one signature for all
    """Nothing is refused: plain tensor operations run anywhere."""
    return ()


def refuse_sdpa(request: BackendRequest) -> tuple[Refusal, ...]:  # noqa: ARG001 - one signature for all
    """Nothing is refused: torch falls back to plain operations."""
    return ()


def refuse_flex(request: BackendRequest) -> tuple[Refusal, ...]:
    """Dropout always; gradients on CPU; narrow and wide heads, float64 and cards before Volta on CUDA."""
    reasons = []
    if request.dropout > 0:
        reasons.append(Refusal("dropout", f"attention_dropout is {request.dropout}; flex drops no weights"))
    if request.device == "cpu" and request.needs_grad:
        reasons.append(Refusal("cpu-gradient", "flex has no backward on CPU, and gradients are needed"))
    return (*reasons, *refuse_flex_kernel(request)) if request.device == "cuda" else tuple(reasons)


def refuse_flex_kernel(request: BackendRequest) -> tuple[Refusal, ...]:
    """What the CUDA kernels cannot run."""
    reasons = []
    least = min(request.q_dim, request.v_dim)
    if least < NARROWEST_FLEX_HEAD:
        text = f"heads of {request.q_dim} and {request.v_dim} channels; its kernels need {NARROWEST_FLEX_HEAD}"
        reasons.append(Refusal("narrow-head", text))
    if max(request.q_dim, request.v_dim) > WIDEST_FLEX_HEAD:
        text = f"heads of {request.q_dim} and {request.v_dim} channels; its tiles hold {WIDEST_FLEX_HEAD}"
        reasons.append(Refusal("wide-head", text))
    if request.dtype == "float64":
        reasons.append(Refusal("dtype", "its kernels do not compile for float64"))
    return (*reasons, *refuse_old_card(request, FLEX_CAPABILITY))


def refuse_flash(request: BackendRequest) -> tuple[Refusal, ...]:
    """Training blocks, CPU, dtypes of 32 bits and more, wide heads, cards before Ampere, a missing package."""
    reasons = []
    if request.phase == "training":
        reasons.append(Refusal("mask", "training blocks need a mask; flash takes none"))
    if request.device != "cuda":
        reasons.append(Refusal("device", "flash runs on CUDA only"))
    if request.dtype not in ("bfloat16", "float16"):
        reasons.append(Refusal("dtype", f"flash computes in bfloat16 and float16, not {request.dtype}"))
    widest = max(request.q_dim, request.v_dim)
    if widest > WIDEST_FLASH_HEAD:
        reasons.append(Refusal("wide-head", f"heads of {widest} channels; flash takes {WIDEST_FLASH_HEAD}"))
    if request.packages.get("flash-attn") is None:
        reasons.append(Refusal("package", "needs flash-attn, an optional package (--package flash-attn)"))
    return (*reasons, *refuse_old_card(request, FLASH_CAPABILITY))


def refuse_old_card(request: BackendRequest, least: tuple[int, int]) -> tuple[Refusal, ...]:
    """A card whose compute capability is known and below `least`."""
    if request.capability is None or request.capability >= least:
        return ()
    have, need = (".".join(map(str, pair)) for pair in (request.capability, least))
    return (Refusal("capability", f"compute capability {have} is below {need}"),)


def attend_functions(name: str) -> dict[str, str]:
    """Where backend `name` keeps its function."""
    return {"attend": f"attend.{name}:attend_{name}"}


# A decoding step has one block of queries and a context that grows: flex, which compiles for shapes and skips tiles,
# then stands behind sdpa.
ATTEND_BACKENDS: tuple[Backend, ...] = (
    Backend("flash", attend_functions("flash"), {"cuda": 40}, refuse_flash),
    Backend("flex", attend_functions("flex"), {"cpu": 20, "cuda": 30}, refuse_flex, decoding={"cpu": 20, "cuda": 15}),
    Backend("sdpa", attend_functions("sdpa"), {"cpu": 30, "cuda": 20}, refuse_sdpa),
    Backend("eager", attend_functions("eager"), {"cpu": 10, "cuda": 10}, refuse_eager),
)
