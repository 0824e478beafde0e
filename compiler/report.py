"""What `inspect` shows of a compiled draft, as rows and lines without any drawing."""

from collections import Counter
from collections.abc import Iterator

from draftc.compiler.api import CompiledDraft
from draftc.compiler.parameters import layer_parameter_count, parameter_count
from draftc.compiler.part_costs import FormCost, PartCost, form_costs, part_costs
from draftc.compiler.program import DEVICES, PHASES, Program
from draftc.compiler.readme import shape, visible
from draftc.runtime.request import Choice
from draftc.spec.layout import LayerSpec, Rope

Rows = tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]  # headings, rows, headings of numbers
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
        f"{layer_parameter_count(program, layer.index):,}",
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
    """One row a layer, for what stands outside of them, for heads that the draft has, and for all, at `context` rows.

    `part_costs` says what is counted; a slot is one of the `block_size` that a decoding step runs.
    """
    headings = ("part", "FLOPs a step", "FLOPs a drafted slot", "FLOPs a training row", "cache bytes a token", "cache")
    rows = [_cost_row(part, draft.layout.block_size) for part in part_costs(draft.program, context)]
    return headings, rows, headings[1:]


def _cost_row(cost: PartCost, slots: int) -> tuple[str, ...]:
    return (
        cost.part,
        quantity(cost.step_flops),
        quantity(cost.step_flops // slots),
        quantity(cost.training_row_flops),
        f"{cost.cache_bytes_per_token:,}",
        f"{quantity(cost.cache_bytes)}B",
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


def form_rows(draft: CompiledDraft, context: int) -> Rows:
    """One row for each distinct latent attention and device: how it decodes, and what either form does and keeps."""
    headings = ("attention", "device", "decodes", "FLOPs expanded", "absorbed", "cache as latent", "expanded")
    first = _first_layers(draft).values()
    rows = [_form_row(form) for form in form_costs(draft.program, context) if form.layer in first]
    return headings, rows, headings[3:]


def _form_row(form: FormCost) -> tuple[str, ...]:
    flops = quantity(form.expanded_step_flops), quantity(form.absorbed_step_flops)
    kept = (f"{quantity(size)}B" for size in (form.latent_cache_bytes, form.expanded_cache_bytes))
    return (form.attention, form.device, form.form, *flops, *kept)


def form_lines(draft: CompiledDraft) -> Iterator[str]:
    """Say for each distinct latent attention why it decodes in its form."""
    first = _first_layers(draft)
    for (layer, device), choice in draft.program.forms.items():
        name = draft.layout.layers[layer].name
        if first[name] == layer:
            yield f"{name}, decoding on {device}: {choice.form}: {choice.reason}"


def _first_layers(draft: CompiledDraft) -> dict[str, int]:
    return {layer.name: layer.index for layer in reversed(draft.layout.layers)}


def _choices(program: Program, index: int) -> Iterator[tuple[tuple[str, str], Choice]]:
    for (layer, phase, device), choice in program.choices.items():
        if layer == index:
            yield (phase, device), choice


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
