"""One shape rule per operation of draftc.runtime, per leaf module, and per method of a layer's memory.

A rule has the signature of its operation, with values in place of tensors.
"""

from collections.abc import Mapping

from torch import nn

from draftc.compiler.dims import Dim, as_dim
from draftc.compiler.shapes.torch_ops import Rule
from draftc.compiler.shapes.values import Opaque, TensorValue, Value, promoted, require

Pair = tuple[TensorValue, TensorValue]


def attend(q: TensorValue, k: TensorValue, v: TensorValue, view: Opaque, scale: float) -> TensorValue:  # noqa: ARG001
    """`q [B, h, Q, d]`, `k [B, g, K, d]`, `v [B, g, K, dv]` -> `[B, h, Q, dv]`, g a divisor of h."""
    require(len(q.shape) == len(k.shape) == len(v.shape) == 4, f"attend({q}, {k}, {v}) needs heads before rows")
    require(q.shape[-1] == k.shape[-1], f"queries {q} and keys {k} have different channels")
    require(k.shape[:-1] == v.shape[:-1], f"keys {k} and values {v} have different rows or heads")
    require(q.shape[0] == k.shape[0], f"queries {q} and keys {k} have different batches")
    require(q.shape[1].divided(k.shape[1]) is not None, f"{q.shape[1]} query heads on {k.shape[1]} key-value heads")
    return q.with_shape(*q.shape[:-1], v.shape[-1])


def silence(out: TensorValue, view: Opaque) -> TensorValue:  # noqa: ARG001
    """Rows that see nothing become zero."""
    return out


def rotate(q: TensorValue, k: TensorValue, rope: Pair) -> Value:
    """Leading channels of `q [B, h, Q, d]` and `k [B, g, C+Q, d]` turn by a table `[B, C+Q, r]`."""
    cos, sin = rope
    require(cos.shape == sin.shape, f"cosines {cos} and sines {sin}")
    require(k.shape[-2] == cos.shape[-2], f"keys {k} have other rows than the rope table {cos}")
    for x in (q, k):
        channels, turned = x.shape[-1].constant, cos.shape[-1].constant
        require(
            channels is not None and turned is not None and turned <= channels, f"{x} has fewer channels than {cos}"
        )
    return q, k


def fold_blocks(rows: TensorValue, block_size: int) -> TensorValue:
    """`[B, Q, H] -> [BN, b, H]`."""
    batch, queries, width = rows.shape
    blocks = queries.divided(as_dim(block_size))
    require(blocks is not None, f"{rows} is not whole blocks of {block_size}")
    return rows.with_shape(batch * (blocks or as_dim(0)), block_size, width)


def rows_before(context: TensorValue, anchors: TensorValue, count: int) -> TensorValue:
    """The `count` rows before each anchor `[B, N]`: `[BN, count, H]`."""
    return context.with_shape(anchors.shape[0] * anchors.shape[1], count, context.shape[-1])


def kda(
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    decay: TensorValue,
    beta: TensorValue,
    A_log: TensorValue,  # noqa: N803 - the name of the checkpoints
    dt_bias: TensorValue,
    state: TensorValue | None,
    view: Opaque,  # noqa: ARG001
    lower_bound: float | None,  # noqa: ARG001
) -> TensorValue:
    """`q`, `k`, `v`, `decay [M, T, h, d]`, `beta [M, T, h]`, `state [M, h, d, d]` -> `[M, T, h, d]`."""
    require(q.shape == k.shape, f"queries {q} and keys {k}")
    _require_recurrence(k, v, decay, beta, A_log, dt_bias)
    rows, _, heads, width = q.shape
    require(state is None or state.shape == (rows, heads, width, width), f"state {state} of queries {q}")
    return v


def kda_states(
    k: TensorValue,
    v: TensorValue,
    decay: TensorValue,
    beta: TensorValue,
    A_log: TensorValue,  # noqa: N803 - the name of the checkpoints
    dt_bias: TensorValue,
    state: TensorValue,
    anchors: TensorValue,
    view: Opaque,  # noqa: ARG001
    lower_bound: float | None,  # noqa: ARG001
) -> TensorValue:
    """The state before each anchor `[B, N]`, from `k`, `v`, `decay [B, C, h, d]`: `[BN, h, d, d]`, float32 at least."""
    _require_recurrence(k, v, decay, beta, A_log, dt_bias)
    batch, _, heads, width = k.shape
    require(state.shape == (batch, heads, width, width), f"state {state} of keys {k}")
    return TensorValue((batch * anchors.shape[1], heads, width, width), _wide(decay))


def _wide(x: TensorValue) -> str:
    """The dtype of a state that rows like `x` make."""
    return promoted(x, TensorValue((), "float32"))


def _require_recurrence(
    k: TensorValue, v: TensorValue, decay: TensorValue, beta: TensorValue, rate: TensorValue, bias: TensorValue
) -> None:
    heads, width = k.shape[-2:]
    require(k.shape == v.shape == decay.shape, f"keys {k}, values {v} and decay {decay}")
    require(beta.shape == k.shape[:-1], f"strengths {beta} of keys {k}")
    require(rate.shape == (heads,) and bias.shape == (heads * width,), f"A_log {rate}, dt_bias {bias} of keys {k}")


def update(memory: Opaque, k: TensorValue, v: TensorValue) -> Value:
    """Rows that the memory kept come before the new ones."""
    return tuple(x.with_shape(*x.shape[:-2], memory.past + x.shape[-2], x.shape[-1]) for x in (k, v))


def recall(memory: Opaque, context: TensorValue, tail: int, heads: int, dim: int) -> Value:  # noqa: ARG001
    """The last `tail` rows that were read, and the state after them, at least float32."""
    batch, _, width = context.shape
    state = context.with_shape(batch, heads, dim, dim)
    return context.with_shape(batch, tail, width), TensorValue(state.shape, _wide(context))


def commit(
    memory: Opaque,  # noqa: ARG001
    states: TensorValue,
    read: TensorValue,  # noqa: ARG001
    anchors: TensorValue,  # noqa: ARG001
    tail: int,  # noqa: ARG001
    rows: Dim,  # noqa: ARG001
) -> TensorValue:
    """The states as they are."""
    return states


def linear_module(module: nn.Linear, x: TensorValue) -> TensorValue:
    """`[..., in] -> [..., out]`."""
    require(x.shape[-1] == module.in_features, f"{x} meets a linear layer for {module.in_features} channels")
    return x.with_shape(*x.shape[:-1], module.out_features)


def weighted(module: nn.Module, x: TensorValue, *others: TensorValue) -> TensorValue:
    """A norm over the last axis, of one value or of several alike."""
    size = module.get_parameter("weight").shape[0]
    require(x.shape[-1] == size, f"{x} meets a norm over {size} channels")
    require(all(other.shape == x.shape for other in others), f"{x} meets {', '.join(map(str, others))}")
    return x


def gated_norm(module: nn.Module, out: TensorValue, gate: TensorValue, view: Opaque) -> TensorValue:  # noqa: ARG001
    """A norm over the last axis of `out`, gated by as many values."""
    return weighted(module, out, gate)


def convolution(module: nn.Module, rows: TensorValue, view: Opaque) -> TensorValue:  # noqa: ARG001
    """A causal depthwise convolution over the rows."""
    channels = module.get_parameter("weight").shape[0]
    require(rows.shape[-1] == channels, f"{rows} meets a convolution of {channels} channels")
    return rows


def dynamic_kernels(module: nn.Module, normed: TensorValue) -> Value:
    """Changes of the kernels before and after a sublayer, `[B, Q, H] -> [B, Q, taps, groups]` twice."""
    _, taps, width = module.get_parameter("base_kernel").shape
    require(normed.shape[-1] == width, f"{normed} meets kernels of {width} channels")
    out = module.get_parameter("kernel_projection.weight").shape[0]
    change = normed.with_shape(*normed.shape[:-1], taps, out // (2 * taps))
    return change, change


def convolve_blocks(rows: TensorValue, kernel: TensorValue, delta: TensorValue, block_size: int) -> TensorValue:
    """`rows [B, Q, H]`, `kernel [taps, H]`, `delta [B, Q, taps, groups]` -> `[B, Q, H]`."""
    require(rows.shape[1].divided(as_dim(block_size)) is not None, f"{rows} is not whole blocks of {block_size}")
    require(kernel.shape == (delta.shape[-2], rows.shape[-1]), f"kernel {kernel} of rows {rows} and changes {delta}")
    require(delta.shape[:-2] == rows.shape[:-1], f"changes {delta} of rows {rows}")
    require(rows.shape[-1].divided(delta.shape[-1]) is not None, f"{delta.shape[-1]} groups of channels in {rows}")
    return rows


OPERATIONS: Mapping[str, Rule] = {
    "attend": attend,
    "convolve_blocks": convolve_blocks,
    "fold_blocks": fold_blocks,
    "kda": kda,
    "kda_states": kda_states,
    "rotate_half": rotate,
    "rotate_interleaved": rotate,
    "rows_before": rows_before,
    "silence": silence,
}

MEMORY_METHODS: Mapping[str, Rule] = {"commit": commit, "recall": recall, "update": update}

MODULES: Mapping[str, Rule] = {
    "DynamicKernels": dynamic_kernels,
    "GatedRMSNorm": gated_norm,
    "Linear": linear_module,
    "RMSNorm": weighted,
    "ShortConvolution": convolution,
}
