"""`draftc compile`: from a layout to a bundle, and a table of what was built and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.console import errors, progress, table
from draftc.commands.failure import CommandError
from draftc.commands.options import (
    LAYOUT_HELP,
    BackendName,
    Capability,
    Disable,
    Opt,
    Package,
    Selection,
    require_folder,
)
from draftc.commands.reading import layout_of

if TYPE_CHECKING:
    from draftc.compiler.api import CompiledDraft

EXAMPLES = (
    "draftc compile layout.yaml",
    "draftc compile qwen3-4b-dflash --output drafts --weights random",
    "draftc compile --all --check",
)

Names = Annotated[list[str] | None, typer.Argument(help=LAYOUT_HELP, metavar="LAYOUT...", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder that gets a bundle folder per layout.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when a bundle is missing or stale.")]
Weights = Annotated[str, typer.Option(help="`random`, or a .safetensors file or folder to take weights from.")]


def compile_layout(
    layouts: Names = None,
    output: Output = Path("generated"),
    check: Check = False,
    every: Annotated[bool, typer.Option("--all", help="All shipped layouts.")] = False,
    weights: Weights = "",
    opt: Opt = 1,
    disable: Disable = None,
    backend: BackendName = None,
    capability: Capability = None,
    package: Package = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table.")] = False,
) -> None:
    """Compile layouts into Hugging Face bundles that stand alone."""
    from draftc.spec.sources import list_layouts

    names = [*(layouts or ()), *(list_layouts() if every else ())]
    if not names:
        raise CommandError("nothing to compile", "name a layout, or pass --all for every shipped one")
    require_folder(output)
    selection, stale = Selection(opt, disable, backend, capability, package), False
    for name in names:
        with errors():
            draft = compiled(name, selection)
            folder = output / draft.layout.name
            if check:
                stale = report_stale(draft, folder) or stale
            else:
                with progress(f"writing {folder}"):
                    draft.write(folder, weights=weights or None)
                report_built(draft, folder, quiet)
    if stale:
        raise typer.Exit(1)


def compiled(name: str, selection: Selection) -> "CompiledDraft":
    """Check and compile the layout that `name` names; findings go to standard error."""
    layout, report = layout_of(name)
    with progress(f"compiling {layout.name}"):
        from draftc.compiler.api import compile as build

        return build(layout, selection.options(), text=report.text)


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
