"""Arguments that `train` and `capture` share, and their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftc.commands.console import errors
from draftc.commands.failure import CommandError
from draftc.commands.options import Device, finite

Target = Annotated[Path, typer.Option(help="Folder of the target model.", metavar="FOLDER")]
Data = Annotated[Path, typer.Option(help="A .jsonl file, a folder of them, or a folder of captured states.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of checkpoints and of the bundle.")]
Evaluation = Annotated[Path | None, typer.Option("--eval-data", help="Data to measure acceptance on.")]
Weights = Annotated[Path | None, typer.Option(help="A bundle or .safetensors file to start from.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps; by default --epochs decide.")]
Epochs = Annotated[float, typer.Option(min=0, callback=finite, help="How often all data are seen.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples of a rank and micro-step.")]
Accumulation = Annotated[int, typer.Option(min=1, help="Micro-steps of an optimiser step.")]
LearningRate = Annotated[float, typer.Option(min=0, callback=finite, help="The highest of a cosine schedule.")]
NumAnchors = Annotated[int, typer.Option(min=1, help="The most blocks of an example.")]
MaxLength = Annotated[int, typer.Option(min=2, help="Tokens at which examples are cut.")]
Loss = Annotated[str, typer.Option(help="`own`, ce, dpace..., lk-alpha, lk-tv, lk-lambda, each lk also with -labels.")]
Gamma = Annotated[
    float | None, typer.Option(min=0, callback=finite, help="Fading along a block; 0: none. The family's by default.")
]
KlScale = Annotated[
    float, typer.Option(min=0, callback=finite, max=1, help="Share of KL in lk-lambda at acceptance 0.")
]
KlDecay = Annotated[float, typer.Option(min=0, callback=finite, help="How fast that share falls with acceptance.")]
ConfidenceWeight = Annotated[
    float, typer.Option(min=0, callback=finite, help="Coefficient of dspark's confidence term.")
]
SelectorWeight = Annotated[float, typer.Option(min=0, callback=finite, help="Coefficient of dflash2's selector term.")]


class Arithmetic(StrEnum):
    """Dtypes that training computes in."""

    bf16 = "bf16"
    fp32 = "fp32"


class Ranks(StrEnum):
    """How weights lie on several ranks."""

    ddp = "ddp"
    fsdp = "fsdp"


Precision = Annotated[Arithmetic, typer.Option(help="bf16 has float32 weights to train.")]
Spread = Annotated[Ranks, typer.Option(help="Over ranks: ddp (each has all weights) or fsdp (FSDP2).")]
Card = Annotated[
    str, typer.Option("--capability", help="CUDA capability to choose backends for, e.g. 9.0, `detect` or `any`.")
]
Place = Annotated[Device | None, typer.Option("--device", help="By default cuda where there is a card.")]


@contextmanager
def material_errors() -> Iterator[None]:
    """Turn what training refuses into a message and exit code 1, a missing package into one with the way to get it."""
    with errors():
        try:
            from draftc.runtime.objectives.steps import ObjectiveError
            from draftc.runtime.packing import PackingError
            from draftc.runtime.rows import DraftInputError
            from draftc.runtime.train.errors import TrainingError
        except ImportError as error:
            raise CommandError(f"training needs {error.name}", "pip install 'draftc[train]'") from None
        try:
            yield
        except (TrainingError, ObjectiveError, PackingError, DraftInputError) as error:
            raise CommandError(str(error), exit_code=1) from None
        except ImportError as error:
            raise CommandError(f"training needs a package: {error}", "pip install 'draftc[train]'") from None
