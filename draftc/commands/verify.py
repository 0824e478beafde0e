"""`draftc verify`: whether a bundle computes what the reference modules compute."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftc.commands.console import errors, progress, table
from draftc.commands.options import Device

EXAMPLES = (
    "draftc verify generated/qwen3-4b-dflash",
    "draftc verify generated/* --dtype float64",
    "draftc verify drafts/mine --device cuda --dtype bfloat16 --backend flex --backend sdpa",
)


class Precision(StrEnum):
    """Dtypes that a bundle can be run in."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def verify(
    bundles: Annotated[list[Path], typer.Argument(help="Bundle folders.", metavar="BUNDLE...")],
    backend: Annotated[list[str] | None, typer.Option(help="Repeatable; by default the bundle's own choice.")] = None,
    dtype: Annotated[Precision, typer.Option(help="What weights and inputs are drawn in.")] = Precision.float32,
    device: Annotated[Device, typer.Option(help="Where bundle and reference run.")] = Device.cpu,
    whole: Annotated[bool, typer.Option(help="Run the whole stack, not one layer of each class.")] = False,
) -> None:
    """Run bundles in a fresh process without draftc and compare outputs and gradients with the reference."""
    failed = False
    with errors():
        from draftc.compiler.verify import verify as compare

        for bundle in bundles:
            rows = []
            with progress(f"verifying {bundle.name}"):
                for verdict in compare(bundle, tuple(backend or [None]), dtype.value, device.value, whole):
                    worst, name = verdict.largest, verdict.backend or "its own choice"
                    passed = "fails" if verdict.reasons else "passes"
                    rows.append((name, verdict.device, verdict.dtype, f"{worst.relative:.1e}", worst.what, passed))
                    failed = failed or bool(verdict.reasons)
            table(f"{bundle.name} against the reference", _HEADINGS, rows)
    if failed:
        raise typer.Exit(1)


_HEADINGS = ("backend", "device", "dtype", "largest difference, of scale", "where", "")
