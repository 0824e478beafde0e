"""`draftc compile`: from a layout to a bundle, and a table of what was built and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.console import errors, progress, table
from draftc.commands.failure import Failure
from draftc.commands.reading import layout_of

if TYPE_CHECKING:
    from draftc.compiler.api import CompiledDraft
    from draftc.compiler.program import Options


def compile_layout(
    layouts: Annotated[
        list[str] | None,
        typer.Argument(help="Layout files, `-`, or names of shipped layouts.", metavar="LAYOUT...", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that gets a bundle folder per layout.")] = Path(
        "generated"
    ),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when a bundle is missing or stale.")] = False,
    every: Annotated[bool, typer.Option("--all", help="All shipped layouts.")] = False,
    weights: Annotated[
        str, typer.Option(help="`random` for fresh weights, or a .safetensors file to take them from.", metavar="WEIGHTS")
    ] = "",
    opt: Annotated[int, typer.Option(min=0, max=2, help="0 plain, 1 keeps the numbers, 2 may reorder sums.")] = 1,
    disable: Annotated[list[str] | None, typer.Option(help="Pass to leave out, repeatable.", metavar="PASS")] = None,
    backend: Annotated[str | None, typer.Option(help="Backend for every layer whose operation it implements.")] = None,
    capability: Annotated[
        str | None, typer.Option(help="CUDA compute capability to select for, such as 9.0; by default the card's.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table.")] = False,
) -> None:
    """Compile layouts into Hugging Face bundles that stand alone."""
    from draftc.spec.sources import list_layouts

    names = [*(layouts or ()), *(list_layouts() if every else ())]
    if not names:
        raise Failure("nothing to compile", "name a layout, or pass --all for every shipped one")
    stale = False
    for name in names:
        with errors():
            draft, options = compiled(name, opt, tuple(disable or ()), backend, capability)
            folder = output / draft.layout.name
            if check:
                stale = report_stale(draft, folder) or stale
            else:
                with progress(f"writing {folder}"):
                    draft.write(folder, weights=weights or None)
                report_built(draft, folder, quiet)
    if stale:
        raise typer.Exit(1)


def compiled(
    name: str, opt: int, disable: tuple[str, ...], backend: str | None, capability: str | None
) -> "tuple[CompiledDraft, Options]":
    """Check and compile the layout that `name` names; findings go to standard error."""
    layout, report = layout_of(name)
    with progress(f"compiling {layout.name}"):
        from draftc.compiler.api import compile as build
        from draftc.compiler.program import Options

        options = Options(opt, disable, backend, capability_of(capability))
        return build(layout, options, text=report.text), options


def capability_of(text: str | None) -> tuple[int, int] | None:
    """Read a compute capability such as `9.0`; None stays None. Raises Failure for anything else."""
    if text is None:
        return None
    major, _, minor = text.partition(".")
    if not major.isdigit() or (minor and not minor.isdigit()):
        raise Failure(f"--capability {text} is not a compute capability", "write it like 9.0")
    return int(major), int(minor or 0)


def report_stale(draft: "CompiledDraft", folder: Path) -> bool:
    """Say whether the bundle in `folder` is fresh; return whether it is not."""
    reasons = draft.stale(folder)
    if not reasons:
        typer.echo(f"{folder} is fresh")
        return False
    typer.echo(f"{folder} is stale: {'; '.join(reasons)}")
    return True


def report_built(draft: "CompiledDraft", folder: Path, quiet: bool) -> None:
    """Say what was written and, unless `quiet`, what it is made of."""
    from draftc.compiler.report import layer_rows, summary

    if not quiet:
        table(summary(draft), *layer_rows(draft))
    typer.echo(f"wrote {folder}")
