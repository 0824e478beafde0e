"""What each part of a draft does and keeps, counted at one length of context."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from draftc.compiler.costs import Cost
from draftc.compiler.dims import Lengths
from draftc.compiler.latent_form import FormName, expanded_row_bytes
from draftc.compiler.passes.cost import head_cost, outer_cost
from draftc.compiler.program import Device, Program
from draftc.spec.layout import Mla

TRAINING_BLOCKS = 512  # anchors a row that public training recipes sample


@dataclass(frozen=True, slots=True)
class PartCost:
    """FLOPs (a multiply-add is two) and bytes kept, of a layer or of another part of the draft, for one row of a batch.

    A decoding step runs one block behind all context rows, one of them new, in the form that attentions decode in on
    CUDA. A training row runs 512 blocks, forward only.
    """

    part: str
    step_flops: int
    training_row_flops: int
    cache_bytes_per_token: int = 0
    cache_bytes: int = 0


def part_costs(program: Program, context: int) -> tuple[PartCost, ...]:
    """Return the costs of every layer, of what stands outside of them, of heads that the draft has, and their sum.

    `context` is the number of context rows. The sum is the last part; the output head of the target is in none. Empty
    when pass cost did not run.
    """
    if not program.costs:
        return ()
    step, row = Lengths(1, 1, 1, max(context - 1, 0)), Lengths(1, TRAINING_BLOCKS, context)
    parts = [_layer(program, index, step, row) for index in range(len(program.stack))]
    parts.append(_outer("outside the layers", outer_cost(program.layout), step, row))
    heads = head_cost(program.layout)
    if heads.flops != 0:
        parts.append(_outer("heads", heads, step, row))
    return (*parts, _sum(f"draft at {context} context rows", parts))


@dataclass(frozen=True, slots=True)
class FormCost:
    """How a layer of latent attention decodes on a device, and what either form does in a step and would keep."""

    layer: int
    attention: str
    device: Device
    form: FormName
    reason: str
    expanded_step_flops: int
    absorbed_step_flops: int
    latent_cache_bytes: int
    expanded_cache_bytes: int


def form_costs(program: Program, context: int) -> tuple[FormCost, ...]:
    """Return one entry for each layer and device where pass select chose between two forms, at `context` rows."""
    if not program.costs:
        return ()
    found = (_form(program, layer, device, context) for layer, device in sorted(program.forms))
    return tuple(cost for cost in found if cost is not None)


def _form(program: Program, layer: int, device: Device, context: int) -> FormCost | None:
    cost, choice, spec = program.costs[layer], program.forms[layer, device], program.layout.layers[layer]
    if cost.absorbed is None or not isinstance(spec.attention, Mla):
        return None
    step = Lengths(1, 1, 1, max(context - 1, 0))
    expanded = replace(cost.cache, row_bytes=expanded_row_bytes(spec.attention, program.layout.dtype))
    flops = cost.flops_at(step), cost.absorbed.flops_at(step)
    kept = cost.cache.bytes_at(step), expanded.bytes_at(step)
    return FormCost(layer, spec.name, device, choice.form, choice.reason, *flops, *kept)


def _layer(program: Program, index: int, step: Lengths, row: Lengths) -> PartCost:
    cost, name = program.costs[index], program.layout.layers[index].name
    kept = cost.cache.row_bytes, cost.cache.bytes_at(step)
    return PartCost(f"{index} {name}", program.decoding_cost(index, "cuda").flops_at(step), cost.flops_at(row), *kept)


def _outer(part: str, cost: Cost, step: Lengths, row: Lengths) -> PartCost:
    return PartCost(part, cost.flops.evaluate(step), cost.flops.evaluate(row))


def _sum(part: str, parts: Iterable[PartCost]) -> PartCost:
    numbers = [one.name for one in fields(PartCost) if one.name != "part"]
    found = list(parts)
    return PartCost(part, *(sum(getattr(one, number) for one in found) for number in numbers))
