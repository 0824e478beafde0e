"""Arguments and options that several commands share, and what `compile` and `inspect` make of theirs."""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.failure import CommandError

if TYPE_CHECKING:
    from draftc.compiler.program import Options

LAYOUT_HELP = "A layout file, `-` for standard input, or the name of a shipped layout."
Layouts = Annotated[list[str], typer.Argument(help=LAYOUT_HELP, metavar="LAYOUT...")]
OneLayout = Annotated[str, typer.Argument(help=LAYOUT_HELP, metavar="LAYOUT")]
Opt = Annotated[int, typer.Option(min=0, max=2, help="0 plain, 1 keeps the numbers, 2 may reorder sums.")]
Disable = Annotated[
    list[str] | None,
    typer.Option(help="Pass to leave out, repeatable: annotate, verify, select, fuse or cost.", metavar="PASS"),
]
BackendName = Annotated[
    str | None, typer.Option(help="Backend for every layer whose operation it implements, e.g. sdpa,kda_block.")
]
Capability = Annotated[
    str | None, typer.Option(help="CUDA capability to select for, e.g. 9.0, or `detect`. Any by default.")
]
Package = Annotated[
    list[str] | None, typer.Option(help="Optional package to select for, repeatable: flash-attn, fla-core.")
]


class Device(StrEnum):
    """Devices that models run on."""

    cpu = "cpu"
    cuda = "cuda"


def require_device(device: str | None) -> None:
    """Raise CommandError when `device` is a card and this machine has none."""
    import torch

    if device == Device.cuda and not torch.cuda.is_available():
        raise CommandError("this machine has no CUDA device", "leave --device out")


def require_folder(output: Path) -> None:
    """Raise CommandError when `output`, which is to be a folder, is a file: known before hours of work."""
    if output.exists() and not output.is_dir():
        raise CommandError(f"{output} is a file, and a folder is to be written", "choose another --output")


def finite(number: float | None) -> float | None:
    """Return `number`, as a callback of an option; raises BadParameter for NaN and infinity, which pass every bound."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is no finite number.")
    return number


@dataclass(frozen=True)
class Selection:
    """The options that decide what is built, as they were typed."""

    opt: int
    disable: list[str] | None
    backend: str | None
    capability: str | None
    package: list[str] | None

    def options(self) -> "Options":
        """Return them as the compiler takes them; raises CommandError or CompileError for what means nothing."""
        from draftc.compiler.passes.select import with_packages
        from draftc.compiler.program import Options

        packages = with_packages(self.package) if self.package else None
        capability = capability_of(self.capability)
        return Options(self.opt, tuple(self.disable or ()), self.backend, capability, packages)


def capability_of(text: str | None) -> tuple[int, int] | None:
    """Read a compute capability such as `9.0`; `detect` asks the card. Raises CommandError for anything else."""
    if text is None:
        return None
    if text == "detect":
        from draftc.compiler.passes.select import detected_capability

        return detected_capability()
    major, _, minor = text.partition(".")
    if not major.isdigit() or (minor and not minor.isdigit()):
        raise CommandError(f"--capability {text} is not a compute capability", "write it like 9.0, or detect")
    return int(major), int(minor or 0)
