"""What each part of a draft does and keeps, counted at one length of context."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from draftc.compiler.costs import Cost
from draftc.compiler.dims import Lengths
from draftc.compiler.passes.cost import head_cost, outer_cost
from draftc.compiler.program import Program

TRAINING_BLOCKS = 512  # anchors a row that public training recipes sample


@dataclass(frozen=True, slots=True)
class PartCost:
    """FLOPs (a multiply-add is two) and bytes kept, of a layer or of another part of the draft, for one row of a batch.

    A decoding step runs one block behind all context rows, one of them new. A training row runs 512 blocks, forward
    only.
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


def _layer(program: Program, index: int, step: Lengths, row: Lengths) -> PartCost:
    cost, name = program.costs[index], program.layout.layers[index].name
    kept = cost.cache.row_bytes, cost.cache.bytes_at(step)
    return PartCost(f"{index} {name}", cost.flops_at(step), cost.flops_at(row), *kept)


def _outer(part: str, cost: Cost, step: Lengths, row: Lengths) -> PartCost:
    return PartCost(part, cost.flops.evaluate(step), cost.flops.evaluate(row))


def _sum(part: str, parts: Iterable[PartCost]) -> PartCost:
    numbers = [one.name for one in fields(PartCost) if one.name != "part"]
    found = list(parts)
    return PartCost(part, *(sum(getattr(one, number) for one in found) for number in numbers))
