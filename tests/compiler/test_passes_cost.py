"""Costs are those that torch's own counter finds, and what a cache really holds."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from draftc.compiler.build import reference
from draftc.compiler.costs import CacheCost, Cost, LayerCost
from draftc.compiler.dims import Lengths, as_dim, symbols
from draftc.compiler.passes.cost import outer_cost
from draftc.compiler.passes.driver import run_passes
from draftc.compiler.program import Options, Program, assemble
from draftc.spec.layout import Target
from tests.compiler.support import ATTENTIONS, layout, qwen3_8b

DENSE = [name for name in ATTENTIONS if "recurrent" not in name and "scan" not in name]


def priced(*names: str, **changes: object) -> Program:
    program = assemble(layout(*names, **changes), Options())
    run_passes(program)
    return program


def counted(model: torch.nn.Module, context: int, blocks: int) -> int:
    """Operations of matrix products that torch counts in one forward of one training row."""
    block = torch.randn(1, 4 * blocks, 24)
    taps = torch.randn(1, context, 48)
    anchors = torch.full((1, blocks), context)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(noise_embeds=block, context_hidden_states=taps, anchors=anchors)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", DENSE)
def test_matrix_products_are_those_that_torch_counts(name: str) -> None:
    """With one block the eager backend computes exactly the counted pairs; what is left are element-wise operations."""
    program = priced(name, attentions={name: replace(ATTENTIONS[name], sliding_window=None)})
    lengths = Lengths(batch=1, blocks=1, context=11)
    products = sum(
        node.meta["cost"].flops.evaluate(lengths)
        for unit in program.units
        if unit.kind != "layer" and unit.form_of is None
        for node in unit.graph.nodes
        if (node.op == "call_module" and node.target.endswith(("_proj", "_mqa")))
        or getattr(node.target, "__name__", "") == "attend"
    )
    outer = outer_cost(program.layout).flops.evaluate(lengths)
    assert products + outer == counted(reference(program.layout).eval(), context=11, blocks=1)
    elements = program.costs[0].flops_at(lengths) - products
    assert 0 < elements < 0.1 * products


def test_a_layer_is_the_sum_of_its_parts() -> None:
    program = priced("context")
    cost = program.costs[0]
    lengths = Lengths(2, 3, 17, 5)
    layer = program.unit("ContextLayer")
    whole = sum(node.meta["cost"].flops.evaluate(lengths) for node in layer.graph.nodes if "cost" in node.meta)
    assert cost.flops_at(lengths) == whole
    moved = sum(node.meta["cost"].bytes.evaluate(lengths) for node in layer.graph.nodes if "cost" in node.meta)
    assert cost.bytes_at(lengths) == moved


def test_numbers_at_the_width_of_qwen3_8b() -> None:
    program = assemble(qwen3_8b())
    run_passes(program)
    cost = program.costs[0]
    assert cost.parameters == 192_946_432
    assert cost.cache.row_bytes == 2 * 8 * 128 * 2
    b, _, q, c, p = symbols(16)
    assert cost.attention.flops == 4 * b * 32 * 128 * q * (p + c + 16)
    assert dict(cost.dense.flops.terms)["BC"] == pytest.approx(2 * 4096 * 2048, rel=0.01)


def test_a_window_limits_what_attention_reads() -> None:
    full, near = priced("context").costs[0], priced("near").costs[0]
    short, long = Lengths(1, 2, 5), Lengths(1, 2, 500)
    assert near.flops_at(short) == full.flops_at(short)
    assert near.flops_at(long) < full.flops_at(long)
    past = Lengths(1, 2, 4, 496)
    assert near.attention.flops.evaluate(Lengths(1, 2, 9)) == near.flops_at(past) - near.dense.flops.evaluate(past)


@pytest.mark.parametrize("name", ["context", "multi", "latent", "latent_bare", "near", "scan", "recurrent"])
def test_the_cache_holds_what_is_said(name: str) -> None:
    program = priced(name, "context")
    model = reference(program.layout).eval()
    cache = DynamicCache(config=model.config)
    for rows in (7, 9):
        with torch.no_grad():
            model(noise_embeds=torch.randn(2, 4, 24), context_hidden_states=torch.randn(2, rows, 48), cache=cache)
        cache.crop(-4)
    held = cache.layers[0]
    tensors = [value for value in vars(held).values() if isinstance(value, torch.Tensor)]
    found = sum(value.numel() * value.element_size() for value in tensors if value.is_floating_point())
    assert found == program.costs[0].cache.bytes_at(Lengths(batch=2, blocks=1, context=9, past=7))


def test_outer_projections() -> None:
    b, _, q, c, _ = symbols(4)
    assert outer_cost(layout("context")).flops == 2 * b * c * 48 * 24
    wide = layout("context", target=Target(hidden_size=40, num_hidden_layers=8, vocab_size=100))
    assert outer_cost(wide).flops == 2 * b * c * 80 * 24 + 2 * b * q * 40 * 24 * 2
    headed = replace(wide, draft_vocab_size=50)
    assert outer_cost(headed).flops == 2 * b * c * 80 * 24 + 2 * b * q * 40 * 24


def test_costs_add() -> None:
    one = Cost(as_dim(1), as_dim(2))
    assert one + one == Cost(as_dim(2), as_dim(4))
    kept = CacheCost(row_bytes=10, state_bytes=100, rows=5)
    assert kept.bytes_at(Lengths(2, 1, 3, 4)) == 2 * (100 + 50)
    assert kept.bytes_at(Lengths(2, 1, 3)) == 2 * (100 + 30)
    assert LayerCost(1, one, one, kept, None).flops_at(Lengths(1, 1, 1)) == 2
