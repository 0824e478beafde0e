"""What `inspect` shows of a compiled draft, as rows and lines without any drawing."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import fx

from draftc.compiler.api import CompiledDraft
from draftc.compiler.dims import Lengths
from draftc.compiler.parameters import parameter_count
from draftc.compiler.passes.cost import head_cost
from draftc.compiler.program import DEVICES, PHASES, Program, Unit, operation
from draftc.compiler.readme import shape, visible
from draftc.runtime.request import Choice
from draftc.spec.layout import LayerSpec, Rope

Rows = tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]  # headings, rows, headings of numbers
TRAINING_BLOCKS = 512  # anchors a row that public training recipes sample
SUFFIXES = ("", "k", "M", "G", "T", "P")


def summary(draft: CompiledDraft) -> str:
    """Say in one line what was built."""
    layout = draft.layout
    taps = f"{len(layout.target_layer_ids)} taps of {layout.tap_width}"
    total = parameter_count(draft.program)
    return f"{layout.name}: {layout.family.name}, {len(layout.layers)} layers, {total:,} parameters, reads {taps}"


def layer_rows(draft: CompiledDraft) -> Rows:
    """One row a layer: attention, what it sees, rope, class, parameters, what it keeps, chosen backends on CUDA."""
    headings = ("layer", "attention", "shape", "sees", "rope", "class", "parameters", "keeps", "training", "decoding")
    rows = [_layer_row(draft.program, layer) for layer in draft.layout.layers]
    return headings, rows, ("layer", "parameters")


def _layer_row(program: Program, layer: LayerSpec) -> tuple[str, ...]:
    backends = (program.backend(layer.index, phase, "cuda") for phase in PHASES)
    return (
        str(layer.index),
        f"{layer.name} ({layer.attention.kind})",
        shape(layer),
        visible(layer),
        rope_words(layer.attention.rope),
        program.stack[layer.index],
        f"{program.costs[layer.index].parameters:,}",
        layer.attention.memory,
        *backends,
    )


def rope_words(rope: Rope | None) -> str:
    """Say a rope in a few words."""
    if rope is None:
        return "none"
    partial = f" x{rope.partial_rotary_factor:g}" if rope.partial_rotary_factor != 1.0 else ""
    scaled = f" {rope.scaling.rope_type}" if rope.scaling else ""
    return f"{rope.style} {rope.rope_theta:.12g}{partial}{scaled}"


def cost_rows(draft: CompiledDraft, context: int) -> Rows:
    """One row a layer, one for heads that the draft has and one for all, at `context` rows.

    FLOPs of a decoding step and of a training row, and bytes kept. A decoding step runs one block after `context` rows,
    one of them new; a training row runs 512 blocks, forward only.
    """
    headings = ("layer", "FLOPs a step", "FLOPs a drafted slot", "FLOPs a training row", "cache bytes a token", "cache")
    step, row = Lengths(1, 1, 1, max(context - 1, 0)), Lengths(1, TRAINING_BLOCKS, context)
    slots = draft.layout.block_size
    rows, total = [], Counter[str]()
    for layer in draft.layout.layers:
        cost = draft.program.costs[layer.index]
        counted = Counter(
            step=cost.flops_at(step),
            row=cost.flops_at(row),
            token=cost.cache.row_bytes,
            cache=cost.cache.bytes_at(step),
        )
        total.update(counted)
        rows.append(_cost_row(f"{layer.index} {layer.name}", counted, slots))
    heads = head_cost(draft.layout).flops
    if heads != 0:
        after = Counter(step=heads.evaluate(step), row=heads.evaluate(row))
        total.update(after)
        rows.append(_cost_row("heads", after, slots))
    rows.append(_cost_row(f"stack at {context} context rows", total, slots))
    return headings, rows, headings[1:]


def _cost_row(name: str, counted: Counter[str], slots: int) -> tuple[str, ...]:
    return (
        name,
        quantity(counted["step"]),
        quantity(counted["step"] // slots),
        quantity(counted["row"]),
        f"{counted['token']:,}",
        f"{quantity(counted['cache'])}B",
    )


def quantity(value: int) -> str:
    """Write a count with three digits and a suffix, powers of 1000."""
    scaled, step = float(value), 0
    while scaled >= 999.5 and step < len(SUFFIXES) - 1:
        scaled, step = scaled / 1000, step + 1
    return f"{scaled:.3g} {SUFFIXES[step]}".rstrip() + (" " if not step else "")


def backend_rows(draft: CompiledDraft) -> Rows:
    """One row for each distinct attention: the backend in each phase on each device."""
    places = [(phase, device) for phase in PHASES for device in DEVICES]
    headings = ("attention", *(f"{phase} on {device}" for phase, device in places))
    rows = []
    for name, index in _first_layers(draft).items():
        rows.append((name, *(draft.program.backend(index, phase, device) for phase, device in places)))
    return headings, rows, ()


def refusal_lines(draft: CompiledDraft) -> Iterator[str]:
    """Say for each distinct attention why better backends were passed over, each reason once."""
    for name, index in _first_layers(draft).items():
        for (phase, device), choice in _choices(draft.program, index):
            if choice.forced_by:
                yield f"{name}, {phase} on {device}: {choice.backend}, forced by {choice.forced_by}"
            for passed_over, refusals in choice.refusals:
                reasons = "; ".join(refusal.reason for refusal in refusals)
                yield f"{name}, {phase} on {device}: not {passed_over}: {reasons}"


def _first_layers(draft: CompiledDraft) -> dict[str, int]:
    return {layer.name: layer.index for layer in reversed(draft.layout.layers)}


def _choices(program: Program, index: int) -> Iterator[tuple[tuple[str, str], Choice]]:
    for (layer, phase, device), choice in program.choices.items():
        if layer == index:
            yield (phase, device), choice


def graph_lines(draft: CompiledDraft) -> Iterator[str]:
    """Print each class as its graph: a line a node with its name, operation, operands, sizes and dtype."""
    for unit in draft.program.units:
        yield f"{unit.name} ({unit.kind}, layers {', '.join(map(str, unit.layers))})"
        for node in unit.graph.nodes:
            yield f"  {node_line(unit, node)}"


def node_line(unit: Unit, node: fx.Node) -> str:
    """Say what `node` is and what passes know of it."""
    operands = ", ".join(str(argument) for argument in node.all_input_nodes)
    what = node.op if node.op in ("placeholder", "output") else operation(unit, node)
    roles = ", ".join(node.meta.get("roles", ()))
    facts = " ".join(str(fact) for fact in (_sizes(node), node.meta.get("dtype")) if fact)
    return f"{node.name} = {what}({operands})" + (f"  # {roles or node.name}: {facts}" if facts else "")


def _sizes(node: fx.Node) -> str:
    dims = node.meta.get("dims")
    return f"[{', '.join(str(dim) for dim in dims)}]" if isinstance(dims, tuple) else ""


def pass_rows(draft: CompiledDraft) -> Rows:
    """One row a pass: number, name, time, operations before and after."""
    headings = ("pass", "name", "ms", "operations before", "after")
    rows: list[tuple[str, ...]] = [
        (str(report.number), report.name, f"{report.seconds * 1e3:.1f}", _total(report.before), _total(report.after))
        for report in draft.reports
    ]
    return headings, rows, ("pass", "ms", "operations before", "after")


def _total(operations: Counter[str]) -> str:
    return str(operations.total())


def pass_notes(draft: CompiledDraft) -> Iterator[str]:
    """What each pass has to say, and which operations it added and removed."""
    for report in draft.reports:
        yield from (f"{report.number} {report.name}: {note}" for note in report.notes)
        for word, count in sorted((report.after - report.before).items()):
            yield f"{report.number} {report.name}: + {count} {word}"
        for word, count in sorted((report.before - report.after).items()):
            yield f"{report.number} {report.name}: - {count} {word}"


def as_json(draft: CompiledDraft, context: int) -> dict[str, Any]:
    """Return everything that `inspect` knows, in plain values."""
    return {
        "format_version": "1.0",
        "name": draft.layout.name,
        "family": draft.layout.family.name,
        "parameters": parameter_count(draft.program),
        "context": context,
        "layers": _records(layer_rows(draft)),
        "costs": _numbers(draft, context),
        "backends": _records(backend_rows(draft)),
        "refusals": list(refusal_lines(draft)),
        "passes": _records(pass_rows(draft)),
        "pass_notes": list(pass_notes(draft)),
        "graphs": {unit.name: [node_line(unit, node) for node in unit.graph.nodes] for unit in draft.program.units},
    }


def _records(table: Rows) -> list[dict[str, str]]:
    headings, rows, _ = table
    return [dict(zip(headings, row, strict=True)) for row in rows]


def _numbers(draft: CompiledDraft, context: int) -> list[dict[str, int]]:
    step, row = Lengths(1, 1, 1, max(context - 1, 0)), Lengths(1, TRAINING_BLOCKS, context)
    return [
        {
            "layer": index,
            "parameters": cost.parameters,
            "step_flops": cost.flops_at(step),
            "training_row_flops": cost.flops_at(row),
            "cache_bytes_per_token": cost.cache.row_bytes,
            "cache_bytes": cost.cache.bytes_at(step),
        }
        for index, cost in sorted(draft.program.costs.items())
    ]
