"""The state of a run on disk: whole tensors whatever the ranks, so that another number of ranks can go on with them."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from draftc.runtime.train.errors import TrainingError, first_line

MASTERS = "masters.safetensors"
OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"
LEARNER_PREFIX = "draft."


def draft_state(learner: nn.Module) -> dict[str, Tensor]:
    """The draft's float32 state under its own names, whole, on the host; on the first rank only where there are more.

    A collective operation.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: dict[str, Any] = get_model_state_dict(learner, options=options)
    return {name.removeprefix(LEARNER_PREFIX): tensor.contiguous() for name, tensor in found.items()}


def write_masters(state: dict[str, Tensor], folder: Path) -> None:
    """Write the float32 `state` into `folder`: the bundle beside it may hold it in fewer bits."""
    replace_file(folder / MASTERS, lambda file: save_file(state, file))


def read_masters(learner: nn.Module, folder: Path) -> None:
    """Give `learner` the float32 state in `folder`. A collective operation. Raises `TrainingError` for another draft's.

    Every rank reads the file.
    """
    try:
        state = load_file(folder / MASTERS)
        named: dict[str, Any] = {LEARNER_PREFIX + name: tensor for name, tensor in state.items()}
        set_model_state_dict(learner, named, options=StateDictOptions(full_state_dict=True, strict=True))
    except (OSError, RuntimeError) as error:
        raise TrainingError(f"{folder / MASTERS} does not fit this draft: {first_line(error)}") from None


def optimizer_state(learner: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The state of `optimizer` by names of parameters, whole, on the host. A collective operation."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(learner, optimizer, options=options)


def write_optimizer(state: dict[str, Any], folder: Path) -> None:
    """Write what `optimizer_state` returned."""
    replace_file(folder / OPTIMIZER, lambda file: torch.save(state, file))


def read_optimizer(learner: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Give `optimizer` its state in `folder`. A collective operation; every rank reads the file."""
    state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    set_optimizer_state_dict(learner, optimizer, state, options=StateDictOptions(full_state_dict=True))


def replace_file(path: Path, write: Any) -> None:
    """Let `write` make a file and put it in the place of `path` in one step."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint below `folder`; None when there is none.

    The trainer's state is written last, so a checkpoint in which it cannot be read was cut off and is passed over.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    newest = sorted(found, key=lambda path: -int(path.name.rpartition("-")[2]))
    return next((path for path in newest if is_whole(path)), None)


def is_whole(checkpoint: Path) -> bool:
    """Whether `checkpoint` was written to its end."""
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and (checkpoint / MASTERS).is_file()
