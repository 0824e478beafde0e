"""`draftc init`: a commented layout to start from."""

from pathlib import Path
from typing import Annotated

import typer

from draftc.commands.failure import CommandError, refused_by_system

EXAMPLES = (
    "draftc init",
    "draftc init drafts/mine.yaml --target qwen3-8b --layers 3 --block-size 8",
)


def init(
    file: Annotated[Path, typer.Argument(help="Where to write the layout.")] = Path("layout.yaml"),
    target: Annotated[str, typer.Option(help="Target preset, see `draftc list`.")] = "qwen3-4b",
    name: Annotated[str, typer.Option(help="Name of the draft; by default the target's with -dflash.")] = "",
    layers: Annotated[int, typer.Option(min=1, max=256, help="How many layers.")] = 5,
    block_size: Annotated[int, typer.Option(min=2, max=4096, help="Slots of a block, the anchor included.")] = 16,
    mask_token_id: Annotated[int, typer.Option(help="Mask token; by default that of a shipped layout.")] = -1,
    force: Annotated[bool, typer.Option(help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented layout, and beside it the schema that gives editors completion."""
    from draftc import schemas
    from draftc.spec.first_layout import first_layout
    from draftc.spec.sources import SourceError

    if file.exists() and not force:
        raise CommandError(f"{file} exists", "choose another name, or pass --force")
    schema = file.with_name("layout-1.schema.json")
    mask = None if mask_token_id < 0 else mask_token_id
    try:
        text = first_layout(target, name or f"{target}-dflash", layers, block_size, mask, schema.name)
        require_valid(text)
        file.parent.mkdir(parents=True, exist_ok=True)
        schema.write_text(schemas.text("layout-1"), encoding="utf-8")
        file.write_text(text, encoding="utf-8")
    except SourceError as error:
        raise CommandError(str(error), error.help) from None
    except OSError as error:
        raise refused_by_system(error, f"cannot write {file}") from None
    typer.echo(f"wrote {file} and {schema.name}; next: draftc check {file}")


def require_valid(text: str) -> None:
    """Raise CommandError, with what was found, unless `text` is a layout without errors."""
    from draftc.spec.check import check_text
    from draftc.spec.render import text as rendering

    report = check_text(text, "this layout", None)
    if report.layout is None:
        found = rendering.render([report]).rstrip()
        raise CommandError(f"these options make no valid layout; nothing was written\n{found}")
