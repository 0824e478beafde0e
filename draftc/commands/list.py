"""`draftc list`: the layouts and targets that come with draftc."""

import typer

EXAMPLES = ("draftc list",)


def list_shipped() -> None:
    """List the shipped layouts and the target presets."""
    from draftc.spec.sources import list_layouts, list_targets

    typer.echo("layouts:")
    for name in list_layouts():
        typer.echo(f"  {name}")
    typer.echo("targets:")
    for name in list_targets():
        typer.echo(f"  {name}")
