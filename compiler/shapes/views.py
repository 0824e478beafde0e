"""One shape rule per operation of torch that renames or rearranges indices."""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from draftc.compiler.dims import Dim, as_dim, product, total
from draftc.compiler.shapes.values import MisfitError, TensorValue, Value, axis_of, require

Index = int | slice | EllipsisType | None


def transpose(x: TensorValue, dim0: int, dim1: int) -> TensorValue:
    """Two axes change places."""
    first, second = axis_of(x, dim0), axis_of(x, dim1)
    return replaced(replaced(x, first, x.shape[second]), second, x.shape[first])


def permute(x: TensorValue, *dims: Any) -> TensorValue:
    """Axes in a new order."""
    order = [axis_of(x, axis) for axis in _spread(dims)]
    require(sorted(order) == list(range(len(x.shape))), f"permute of {x} by {tuple(order)}")
    return x.with_shape(*(x.shape[axis] for axis in order))


def reshape(x: TensorValue, *shape: Any) -> TensorValue:
    """New sizes for the same elements; one -1 takes what is left."""
    return x.with_shape(*_filled(x.shape, _spread(shape), f"{x} does not reshape to {_spread(shape)}"))


def view_as(x: TensorValue, other: TensorValue) -> TensorValue:
    """The elements of `x` in the shape of `other`."""
    return x.with_shape(*_filled(x.shape, other.shape, f"{x} does not have the elements of {other}"))


def flatten(x: TensorValue, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
    """Neighbouring axes as one."""
    first, last = axis_of(x, start_dim), axis_of(x, end_dim)
    return x.with_shape(*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :])


def unflatten(x: TensorValue, dim: int, sizes: Sequence[int]) -> TensorValue:
    """One axis as several."""
    axis = axis_of(x, dim)
    filled = _filled(x.shape[axis : axis + 1], list(sizes), f"axis {dim} of {x} is not {tuple(sizes)}")
    return x.with_shape(*x.shape[:axis], *filled, *x.shape[axis + 1 :])


def split(tensor: TensorValue, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    """Pieces of stated sizes, or as many of one size as there are."""
    axis = axis_of(tensor, dim)
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        length = tensor.shape[axis].constant
        require(length is not None, f"split of {tensor} along axis {dim} has no fixed number of pieces")
        sizes = [min(sizes, (length or 0) - start) for start in range(0, length or 0, sizes)]
    whole = total(as_dim(size) for size in sizes)
    require(whole == tensor.shape[axis], f"split of {tensor} along axis {dim} into {tuple(sizes)}, which is {whole}")
    return tuple(replaced(tensor, axis, as_dim(size)) for size in sizes)


def chunk(x: TensorValue, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """Equal pieces."""
    axis = axis_of(x, dim)
    size = x.shape[axis].divided(as_dim(chunks))
    require(size is not None, f"axis {dim} of {x} is not {chunks} equal pieces")
    return tuple(replaced(x, axis, size or as_dim(0)) for _ in range(chunks))


def unbind(x: TensorValue, dim: int = 0) -> tuple[Value, ...]:
    """The slices along one axis of fixed size."""
    axis = axis_of(x, dim)
    size = x.shape[axis].constant
    require(size is not None, f"unbind of {x} along axis {dim} has no fixed number of results")
    return tuple(x.with_shape(*without(x, axis)) for _ in range(size or 0))


def expand(x: TensorValue, *sizes: Any) -> TensorValue:
    """Axes of size 1 stretched; -1 keeps a size."""
    wanted = _spread(sizes)
    held = (as_dim(1),) * (len(wanted) - len(x.shape)) + x.shape
    for have, want in zip(held, wanted, strict=True):
        require(have == 1 or want == -1 or have == want, f"{x} does not expand to {tuple(wanted)}")
    return x.with_shape(*(have if want == -1 else as_dim(want) for have, want in zip(held, wanted, strict=True)))


def unsqueeze(x: TensorValue, dim: int) -> TensorValue:
    """A new axis of size 1."""
    axis = dim % (len(x.shape) + 1)
    return x.with_shape(*x.shape[:axis], 1, *x.shape[axis:])


def squeeze(x: TensorValue, dim: int) -> TensorValue:
    """An axis of size 1 less."""
    axis = axis_of(x, dim)
    require(x.shape[axis] == 1, f"squeeze of axis {dim} of {x}")
    return x.with_shape(*without(x, axis))


def getitem(x: Value, index: Any) -> Value:
    """A result of several, or indexing by slices, integers, None and an ellipsis."""
    if isinstance(x, tuple):
        require(-len(x) <= index < len(x), f"result {index} of {len(x)}")
        result: Value = x[index]
        return result
    if not isinstance(x, TensorValue):
        raise MisfitError(f"[{index}] of a {type(x).__name__}")
    return _indexed(x, index if isinstance(index, tuple) else (index,))


def _indexed(value: TensorValue, index: tuple[Index, ...]) -> TensorValue:
    taken = sum(item is not None and item is not Ellipsis for item in index)
    free = len(value.shape) - taken
    require(free >= 0, f"{value} has no {taken} axes to index")
    spread: list[Index] = []
    for item in index:
        spread += [slice(None)] * free if item is Ellipsis else [item]
    sizes, axes = [], iter(value.shape)
    for item in spread if Ellipsis in index else [*spread, *[slice(None)] * free]:
        if item is None:
            sizes.append(as_dim(1))
        elif isinstance(item, slice):
            sizes.append(_sliced(next(axes), item, value))
        else:
            next(axes)
    return value.with_shape(*sizes)


def _sliced(size: Dim, part: slice, value: TensorValue) -> Dim:
    """Size of a slice; bounds are taken as inside the axis, which sizes in letters always are in a draft."""
    require(part.step in (None, 1), f"a slice of {value} with a step")
    known = size.constant
    if known is not None:
        return as_dim(len(range(*part.indices(known))))
    start, stop = (as_dim(0) if part.start is None else _bound(part.start, size)), _bound(part.stop, size)
    return stop - start


def _bound(bound: int | None, size: Dim) -> Dim:
    return size if bound is None else size + bound if bound < 0 else as_dim(bound)


def _spread(sizes: tuple[Any, ...]) -> list[int]:
    """Sizes given one by one or as one sequence."""
    return list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else list(sizes)


def without(value: TensorValue, axis: int) -> tuple[Dim, ...]:
    """All sizes but that of one axis."""
    return value.shape[:axis] + value.shape[axis + 1 :]


def replaced(value: TensorValue, axis: int, size: Dim) -> TensorValue:
    """The value with another size of one axis."""
    return value.with_shape(*value.shape[:axis], size, *value.shape[axis + 1 :])


def _filled(have: Sequence[Dim], want: Sequence[int | Dim], message: str) -> list[Dim]:
    """Sizes `want` with -1 replaced by what is left of `have`, whose product they must keep."""
    require(sum(1 for size in want if size == -1) <= 1, message)
    rest = product(have)
    for size in want:
        quotient = rest if size == -1 else rest.divided(as_dim(size))
        require(quotient is not None, message)
        rest = quotient or as_dim(0)
    if -1 not in want:
        require(rest == 1, message)
    return [rest if size == -1 else as_dim(size) for size in want]
