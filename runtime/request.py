"""What a backend is asked, and what it answers. Imports nothing; selection runs without tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["training", "decoding"]
Op = Literal["attend", "kda"]


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """The facts of one layer in one phase on one device.

    Widths are channels of one head. `capability` is the CUDA compute capability, None when unknown or on CPU.
    `packages` maps optional packages to their installed version, None when absent; `torch` is always in it.
    """

    op: Op
    phase: Phase
    device: Literal["cpu", "cuda"]
    dtype: Literal["bfloat16", "float16", "float32", "float64"]
    q_dim: int
    v_dim: int
    heads: int
    kv_heads: int
    block_size: int
    window: int | None = None
    is_causal: bool = False
    dropout: float = 0.0
    needs_grad: bool = True
    capability: tuple[int, int] | None = None
    context_state: Literal["reset", "scan"] | None = None
    gate_lower_bound: float | None = None
    conv_width: int | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend cannot run a request: a short stable word, and the reason with its numbers."""

    word: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen backend, and why each better one was passed over. `forced_by` names the override, None without one."""

    backend: str
    refusals: tuple[tuple[str, tuple[Refusal, ...]], ...] = ()
    forced_by: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to run an operation.

    `functions` maps each operation to the function that runs it, written `module:function` below `runtime` (no file is
    imported to know a backend). `priority` holds the devices it runs on; of those that refuse nothing the highest wins.
    `decoding` replaces it in that phase, where given.
    `refuse` is pure and cheap and returns every reason why a request cannot run; empty means it can.
    """

    name: str
    functions: Mapping[str, str]
    priority: Mapping[Literal["cpu", "cuda"], int]
    refuse: Callable[[BackendRequest], tuple[Refusal, ...]]
    decoding: Mapping[Literal["cpu", "cuda"], int] | None = None

    def rank(self, phase: Phase, device: Literal["cpu", "cuda"]) -> int | None:
        """Priority in `phase` on `device`, the highest is tried first; None where the backend does not run."""
        chosen = self.decoding if phase == "decoding" and self.decoding is not None else self.priority
        return chosen.get(device)
