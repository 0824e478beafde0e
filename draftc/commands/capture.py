"""`draftc capture`: the target's states on disk, so that training runs without the target."""

from pathlib import Path
from typing import Annotated

import typer

from draftc.commands.compile import compiled
from draftc.commands.options import OneLayout, Selection, require_device, require_folder
from draftc.commands.training import Arithmetic, BatchSize, Data, MaxLength, Place, Precision, Target, material_errors

EXAMPLES = ("draftc capture layout.yaml --target models/qwen3-4b --data train.jsonl --output states",)


def capture(
    layout: OneLayout,
    target: Target,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the capture; a stopped one goes on.")],
    max_length: MaxLength = 2048,
    batch_size: BatchSize = 8,
    precision: Precision = Arithmetic.bf16,
    device: Place = None,
    shard_rows: Annotated[int, typer.Option(min=1, help="Examples of one file.")] = 256,
) -> None:
    """Run the target over data and write the states that the draft of a layout reads."""
    require_folder(output)
    with material_errors():
        require_device(device)
        from draftc.training import capture as run

        draft = compiled(layout, Selection(1, None, None, None, None))
        manifest = run(draft, target, data, output, max_length, batch_size, shard_rows, device, precision.value, done)
    rows = sum(shard.rows for shard in manifest.shards)
    typer.echo(f"wrote {rows} examples in {len(manifest.shards)} shards to {output}")


def done(examples: int, total: int) -> None:
    """Say on standard error how far a capture is."""
    typer.echo(f"captured {examples} of {total} examples", err=True)
