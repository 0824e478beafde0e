"""`draftc inspect`: layers, parameters, FLOPs, cache bytes, backends with reasons, graphs, passes, origins."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.compile import compiled
from draftc.commands.console import echo_lines, errors, table
from draftc.commands.failure import CommandError
from draftc.commands.options import BackendName, Capability, Disable, OneLayout, Opt, Package, Selection
from draftc.commands.reading import layout_of

if TYPE_CHECKING:
    from draftc.compiler.api import CompiledDraft
    from draftc.spec.layout import Layout

EXAMPLES = (
    "draftc inspect layout.yaml",
    "draftc inspect qwen3-4b-kda-gqa --why rope",
    "draftc inspect layout.yaml --graph --passes",
    "draftc inspect layout.yaml --capability 9.0 --package flash-attn",
)


def inspect(
    layout: OneLayout,
    context: Annotated[int, typer.Option(min=0, help="Context length at which costs are counted.")] = 4096,
    graph: Annotated[bool, typer.Option("--graph", help="The graph of every class, one node a line.")] = False,
    passes: Annotated[bool, typer.Option("--passes", help="What each pass did, operations added and removed.")] = False,
    why: Annotated[str, typer.Option(help="Where a value comes from: a key such as hidden_size or /layers/0.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    opt: Opt = 1,
    disable: Disable = None,
    backend: BackendName = None,
    capability: Capability = None,
    package: Package = None,
) -> None:
    """Show what a layout becomes, without writing anything."""
    if why:
        found, _ = layout_of(layout)
        echo_lines(origins_of(found, why))
        return
    with errors():
        draft = compiled(layout, Selection(opt, disable, backend, capability, package))
        show(draft, context, graph, passes, as_json)


def show(draft: "CompiledDraft", context: int, graph: bool, passes: bool, as_json: bool) -> None:
    """Print the parts of the report that were asked for."""
    from draftc.compiler import graphs, report, report_json

    if as_json:
        typer.echo(json.dumps(report_json.as_json(draft, context), indent=2))
        return
    if passes:
        table("passes", *report.pass_rows(draft))
        echo_lines(report.pass_notes(draft))
        echo_lines(graphs.graph_changes(draft.layout, draft.program.options))
    if graph:
        echo_lines(graphs.graph_lines(draft.program))
    if not (passes or graph):
        table(report.summary(draft), *report.layer_rows(draft))
        if draft.program.costs:
            table("costs", *report.cost_rows(draft, context))
        table("backends", *report.backend_rows(draft))
        if draft.program.forms:
            table(f"forms of latent attention, a step at {context} rows", *report.form_rows(draft, context))
            echo_lines(report.form_lines(draft))
        echo_lines(report.refusal_lines(draft))


def origins_of(layout: "Layout", key: str) -> list[str]:
    """Return a line for each value whose pointer is `key` or ends in it, with the value and where it comes from.

    Raises CommandError when there is none.
    """
    from draftc.spec.resolved import origins, resolved
    from draftc.spec.suggest import did_you_mean

    pointer = key if key.startswith("/") else f"/{key}"
    known = origins(layout)
    found = [at for at in known if at == pointer or at.endswith(pointer) or at.startswith(f"{pointer}/")]
    if not found:
        words = {at.rpartition("/")[2] for at in known}
        raise CommandError(f"no value of {layout.name} is called {key}", did_you_mean(key, words))
    form = resolved(layout)
    return [f"{at} = {json.dumps(value_at(form, at))}, from {layout.origins[at]}" for at in found]


def value_at(form: object, pointer: str) -> object:
    """Return the value of a resolved form to which a JSON pointer leads."""
    for step in pointer.split("/")[1:]:
        match form:
            case dict():
                form = form[step]
            case list():
                form = form[int(step)]
    return form
