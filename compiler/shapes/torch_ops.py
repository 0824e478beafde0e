"""One shape rule per operation of torch. A rule has the signature of its operation, with values in place of tensors."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from draftc.compiler.dims import Dim, as_dim, total
from draftc.compiler.shapes import views
from draftc.compiler.shapes.values import (
    TensorValue,
    Value,
    axis_of,
    broadcast,
    floating,
    promoted,
    require,
)

Rule = Callable[..., Value]


def unary(x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    """An activation or another function of each element."""
    return TensorValue(x.shape, floating(x))


def same(x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    """Whatever keeps shape and dtype."""
    return x


def binary(x: TensorValue | float, other: TensorValue | float) -> TensorValue:
    """Element by element, a plain number taking no part in shape or dtype."""
    tensors = [side for side in (x, other) if isinstance(side, TensorValue)]
    dtype = promoted(*tensors) if len(tensors) > 1 or not _fraction(x, other) else floating(tensors[0])
    return TensorValue(broadcast(*tensors), dtype)


def arithmetic(on_sizes: Callable[[Any, Any], Dim]) -> Rule:
    """A binary operation that sizes read from a shape may meet as well."""

    def rule(x: TensorValue | Dim | float, other: TensorValue | Dim | float) -> Value:
        if isinstance(x, Dim) or isinstance(other, Dim):
            return on_sizes(x, other)
        return binary(x, other)

    return rule


def attribute(x: TensorValue, name: str) -> Value:
    """`x.shape`, the only attribute that a reference forward reads."""
    require(name == "shape", f"attribute {name} of {x}")
    return x.shape


def _fraction(*sides: object) -> bool:
    return any(isinstance(side, float) for side in sides)


def where(condition: TensorValue, x: TensorValue | float, other: TensorValue | float) -> TensorValue:
    """A choice between two values."""
    chosen = binary(x, other) if not _both_numbers(x, other) else TensorValue((), "float32")
    return TensorValue(broadcast(condition, chosen), chosen.dtype)


def _both_numbers(*sides: object) -> bool:
    return not any(isinstance(side, TensorValue) for side in sides)


def cat(tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Tensors one after the other along `dim`; all other sizes agree."""
    axis = axis_of(tensors[0], dim)
    for tensor in tensors:
        require(len(tensor.shape) == len(tensors[0].shape), f"cat of {tensors[0]} and {tensor}")
        agrees = views.without(tensor, axis) == views.without(tensors[0], axis)
        require(agrees, f"cat of {tensors[0]} and {tensor} along axis {dim}")
    joined = total(tensor.shape[axis] for tensor in tensors)
    return TensorValue(views.replaced(tensors[0], axis, joined).shape, promoted(*tensors))


def stack(tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Equal tensors along a new axis."""
    require(len({tensor.shape for tensor in tensors}) == 1, f"stack of {', '.join(map(str, tensors))}")
    first = views.unsqueeze(tensors[0], dim)
    return TensorValue(views.replaced(first, axis_of(first, dim), as_dim(len(tensors))).shape, promoted(*tensors))


def linear(x: TensorValue, weight: TensorValue, bias: TensorValue | None = None) -> TensorValue:
    """`x [..., in]`, `weight [out, in]`, `bias [out]`."""
    require(x.shape[-1] == weight.shape[1], f"{x} meets a weight {weight}, which takes {weight.shape[1]} channels")
    require(bias is None or bias.shape == weight.shape[:1], f"weight {weight} with a bias {bias}")
    return TensorValue((*x.shape[:-1], weight.shape[0]), promoted(x, weight))


def matmul(x: TensorValue, other: TensorValue) -> TensorValue:
    """`x [..., n, m] @ other [..., m, p]`, leading axes broadcast."""
    require(len(x.shape) > 1 and len(other.shape) > 1, f"{x} @ {other} needs matrices")
    require(x.shape[-1] == other.shape[-2], f"{x} @ {other}")
    leading = broadcast(TensorValue(x.shape[:-2], x.dtype), TensorValue(other.shape[:-2], other.dtype))
    return TensorValue((*leading, x.shape[-2], other.shape[-1]), promoted(x, other))


def to(x: TensorValue, dtype: Any) -> TensorValue:
    """Another dtype: a torch dtype, or that of another tensor."""
    if isinstance(dtype, TensorValue):
        return TensorValue(x.shape, dtype.dtype)
    return TensorValue(x.shape, str(dtype).removeprefix("torch."))


def reduction(x: TensorValue, dim: int, keepdim: bool = False) -> TensorValue:
    """A sum or mean along one axis."""
    axis = axis_of(x, dim)
    return views.replaced(x, axis, as_dim(1)) if keepdim else x.with_shape(*views.without(x, axis))


def rms_norm(
    x: TensorValue,
    normalized_shape: Sequence[int],
    weight: TensorValue | None = None,
    eps: float | None = None,  # noqa: ARG001
) -> TensorValue:
    """Statistics over the trailing axes."""
    trailing = x.shape[len(x.shape) - len(normalized_shape) :]
    require(trailing == tuple(as_dim(size) for size in normalized_shape), f"rms_norm of {x} over {normalized_shape}")
    return x if weight is None else TensorValue(x.shape, promoted(x, weight))


METHODS: Mapping[str, Rule] = {
    "chunk": views.chunk,
    "contiguous": same,
    "expand": views.expand,
    "flatten": views.flatten,
    "float": lambda x: TensorValue(x.shape, "float32"),
    "mean": reduction,
    "permute": views.permute,
    "reshape": views.reshape,
    "split": views.split,
    "squeeze": views.squeeze,
    "sum": reduction,
    "to": to,
    "transpose": views.transpose,
    "type_as": to,
    "unbind": views.unbind,
    "unflatten": views.unflatten,
    "unsqueeze": views.unsqueeze,
    "view": views.reshape,
    "view_as": views.view_as,
}

FUNCTIONS: Mapping[Callable[..., Any], Rule] = {
    getattr: attribute,
    F.gelu: unary,
    F.linear: linear,
    F.rms_norm: rms_norm,
    F.silu: unary,
    F.softplus: unary,
    operator.add: arithmetic(operator.add),
    operator.getitem: views.getitem,
    operator.matmul: matmul,
    operator.mul: arithmetic(operator.mul),
    operator.neg: same,
    operator.sub: arithmetic(operator.sub),
    operator.truediv: binary,
    torch.cat: cat,
    torch.exp: unary,
    torch.matmul: matmul,
    torch.sigmoid: unary,
    torch.stack: stack,
    torch.tanh: unary,
    torch.where: where,
}
