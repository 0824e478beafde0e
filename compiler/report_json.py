"""What `inspect --json` writes: plain values, described by `schemas/inspect-1.schema.json`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from draftc.compiler.api import CompiledDraft
from draftc.compiler.describe import describe_attention
from draftc.compiler.graphs import node_line
from draftc.compiler.parameters import layer_parameter_count, parameter_count
from draftc.compiler.part_costs import form_costs, part_costs
from draftc.compiler.program import PassReport, Program
from draftc.spec.layout import LayerSpec

FORMAT_VERSION = "1.0"


def as_json(draft: CompiledDraft, context: int) -> dict[str, Any]:
    """Return everything that `inspect` knows of `draft`, with costs at `context` rows."""
    program, layout = draft.program, draft.layout
    return {
        "format_version": FORMAT_VERSION,
        "name": layout.name,
        "family": layout.family.name,
        "opt": program.options.opt,
        "parameters": parameter_count(program),
        "context": context,
        "layers": [_layer(program, layer) for layer in layout.layers],
        "costs": [asdict(part) for part in part_costs(program, context)],
        "backends": list(_choices(program)),
        "forms": [asdict(form) for form in form_costs(program, context)],
        "passes": [_pass(report) for report in draft.reports],
        "graphs": {unit.name: [node_line(unit, node) for node in unit.graph.nodes] for unit in program.emitted},
    }


def _layer(program: Program, layer: LayerSpec) -> dict[str, Any]:
    spec = layer.attention
    return {
        "layer": layer.index,
        "attention": layer.name,
        "kind": spec.kind,
        "description": describe_attention(spec),
        "sliding_window": spec.sliding_window,
        "is_causal": spec.is_causal,
        "class": program.stack[layer.index],
        "parameters": layer_parameter_count(program, layer.index),
        "memory": spec.memory,
    }


def _choices(program: Program) -> Iterator[dict[str, Any]]:
    for (layer, phase, device), choice in program.choices.items():
        yield {
            "layer": layer,
            "phase": phase,
            "device": device,
            "backend": choice.backend,
            "forced_by": choice.forced_by,
            "passed_over": [
                {"backend": name, "word": refusal.word, "reason": refusal.reason}
                for name, refusals in choice.refusals
                for refusal in refusals
            ],
        }


def _pass(report: PassReport) -> dict[str, Any]:
    return {
        "number": report.number,
        "name": report.name,
        "seconds": report.seconds,
        "before": dict(report.before),
        "after": dict(report.after),
        "notes": list(report.notes),
    }
