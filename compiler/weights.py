"""Weights of a bundle: fresh ones, or given ones after a look at every name and shape."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from draftc.compiler.errors import CompileError
from draftc.compiler.parameters import tensor_shapes
from draftc.compiler.program import Program
from draftc.compiler.write import WEIGHTS
from draftc.spec.compiling_codes import WEIGHTS_DO_NOT_FIT

RANDOM = "random"
SEED = 0
KEPT_IN_FP32 = ("A_log", "dt_bias")
FIXED_DTYPES = {"d2t": torch.int64, "t2d": torch.bool}
SHOWN = 4

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(CompileError):
    """Weights do not fit the layout, or cannot be read."""

    code = WEIGHTS_DO_NOT_FIT


def tensor_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the tensor `name` of a draft of `dtype` is stored."""
    last = name.rpartition(".")[2]
    if last in KEPT_IN_FP32 and dtype.itemsize < torch.float32.itemsize:
        return torch.float32
    return FIXED_DTYPES.get(last, dtype)


def require_drawable(program: Program) -> None:
    """Raise WeightsError when random weights make no draft: maps of a reduced vocabulary come from training data."""
    if program.layout.owns_head:
        raise WeightsError(
            f"random weights leave the maps of draft_vocab_size {program.layout.draft_vocab_size} unfilled",
            help="compile without weights, and let training fill d2t and t2d",
        )


def random_state(make: Callable[[], nn.Module]) -> Mapping[str, Tensor]:
    """Return the state dict of the model that `make` initialises, the same every time; the caller's draws go on."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        return make().state_dict()


def write_state(state: Mapping[str, Tensor], program: Program, folder: Path) -> None:
    """Write `state` as `model.safetensors` in the dtypes of the layout.

    Raises WeightsError unless names and shapes are those of the draft.
    """
    require_fitting({name: tuple(tensor.shape) for name, tensor in state.items()}, program, "the state dict")
    dtype = getattr(torch, program.layout.dtype)
    cast = {name: tensor.detach().to("cpu", tensor_dtype(name, dtype)).contiguous() for name, tensor in state.items()}
    save_file(cast, folder / WEIGHTS, metadata={"format": "pt"})


def write_from_file(path: Path, program: Program, folder: Path) -> None:
    """Write the weights in `path`, a safetensors file or a folder of them, as `model.safetensors`.

    Raises WeightsError when the file cannot be read or does not fit the draft.
    """
    files = present_weight_files(path)
    require_fitting(shapes_in(files), program, path.name)
    if len(files) == 1 and not _miscast(files[0], program):
        shutil.copyfile(files[0], folder / WEIGHTS)
        return
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, "pt")) for file in files]
        write_state({name: source.get_tensor(name) for source in opened for name in _names(source)}, program, folder)


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return `path` itself when it is a file, else the weight files of the folder."""
    return (path,) if path.is_file() else tuple(sorted(path.glob("model*.safetensors")))


def present_weight_files(path: Path) -> tuple[Path, ...]:
    """Return the `weight_files` of `path`. Raises WeightsError when there is none."""
    files = weight_files(path)
    if not files:
        what = "holds no model*.safetensors" if path.is_dir() else "does not exist"
        raise WeightsError(
            f"{path} {what}", help="pass a .safetensors file or a folder of them; `compile` takes `random`"
        )
    return files


def shapes_in(files: tuple[Path, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the files; only their heads are read."""
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as source:
                found.update({name: tuple(source.get_slice(name).get_shape()) for name in _names(source)})
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{file.name} cannot be read: {error}") from error
    return found


def require_fitting(shapes: Shapes, program: Program, source: str) -> None:
    """Raise WeightsError, with the first differences, unless `shapes` are those of the draft."""
    reasons = differences(shapes, tensor_shapes(program))
    if reasons:
        more = (f"and {len(reasons) - SHOWN} more",) if len(reasons) > SHOWN else ()
        raise WeightsError(
            f"the tensors of {source} are not those of {program.layout.name}", notes=(*reasons[:SHOWN], *more)
        )


def differences(shapes: Shapes, expected: Shapes) -> tuple[str, ...]:
    """Say what is missing, of another shape, or not of the draft."""
    missing = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in shapes]
    other = [
        f"{name} is {list(shapes[name])} and should be {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    foreign = [f"{name} is no tensor of the draft" for name in shapes if name not in expected]
    return (*missing, *other, *foreign)


def _miscast(file: Path, program: Program) -> tuple[str, ...]:
    """Names of the tensors that the file stores in another dtype than the draft."""
    dtype = getattr(torch, program.layout.dtype)
    with safe_open(file, "pt") as source:
        return tuple(name for name in _names(source) if _stored(source, name) != tensor_dtype(name, dtype))


def _names(source: Any) -> list[str]:
    names: list[str] = source.keys()
    return names


def _stored(source: Any, name: str) -> torch.dtype:
    words = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
    return words.get(source.get_slice(name).get_dtype(), torch.float64)
