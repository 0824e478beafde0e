"""What flows along the edges of a graph while shapes are inferred."""

from dataclasses import dataclass
from typing import Any, Literal

from draftc.compiler.dims import Dim, as_dim, shown

# Narrow before wide; both 16-bit floats together need 32 bits.
DTYPES = ("bool", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor: its sizes, and its dtype by name."""

    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return shown(self.shape)

    def with_shape(self, *sizes: Dim | int) -> "TensorValue":
        """The same dtype in another shape."""
        return TensorValue(tuple(as_dim(size) for size in sizes), self.dtype)


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that is no tensor: the view, or the memory of a layer with its kept rows."""

    kind: Literal["view", "memory"]
    past: Dim


Value = TensorValue | Opaque | Dim | tuple["Value", ...]


class MisfitError(Exception):
    """Shapes that do not fit, said without the place; the walk over the graph adds it."""


def require(holds: bool, message: str) -> None:
    """Raise `MisfitError` unless `holds`."""
    if not holds:
        raise MisfitError(message)


def axis_of(value: TensorValue, axis: int) -> int:
    """Return `axis` counted from the front."""
    rank = len(value.shape)
    require(-rank <= axis < rank, f"axis {axis} of {value}, which has {rank}")
    return axis % rank


def promoted(*values: TensorValue) -> str:
    """The dtype in which `values` meet."""
    found = {value.dtype for value in values}
    if found >= {"float16", "bfloat16"} and "float64" not in found:
        return "float32"
    return max(found, key=DTYPES.index)


def floating(value: TensorValue) -> str:
    """The dtype of a function that makes fractions: integers become float32."""
    return "float32" if value.dtype in ("bool", "int64") else value.dtype


def broadcast(*values: TensorValue) -> tuple[Dim, ...]:
    """The common shape of `values`, sizes of 1 stretched."""
    rank = max(len(value.shape) for value in values)
    padded = [(Dim.number(1),) * (rank - len(value.shape)) + value.shape for value in values]
    return tuple(_common(sizes, values) for sizes in zip(*padded, strict=True))


def _common(sizes: tuple[Dim, ...], values: tuple[TensorValue, ...]) -> Dim:
    wide = [size for size in sizes if size != 1]
    require(all(size == wide[0] for size in wide), f"{' and '.join(str(value) for value in values)} do not broadcast")
    return wide[0] if wide else sizes[0]


def dims_of(value: Value) -> tuple[Any, ...] | None:
    """What `node.meta["dims"]` holds: a tuple of Dim, one such tuple per result of several, None for no tensor."""
    if isinstance(value, TensorValue):
        return value.shape
    if not isinstance(value, tuple):
        return None
    found = tuple(dims_of(item) for item in value)
    return found if any(found) else None


def dtypes_of(value: Value) -> Any:
    """What `node.meta["dtype"]` holds: a name, a tuple of names for several results, None for no tensor."""
    if isinstance(value, TensorValue):
        return value.dtype
    if not isinstance(value, tuple):
        return None
    found = tuple(dtypes_of(item) for item in value)
    return found if any(found) else None
