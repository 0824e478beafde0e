"""Fusing changes no number but for rounding: outputs and gradients of opt 2 against the reference, in float64."""

import pytest
import torch
from torch import fx, nn

from draftc.compiler.passes.driver import run_passes
from draftc.compiler.printer import body_lines
from draftc.compiler.program import Options, Program, Unit, assemble
from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import rope_table
from draftc.runtime.visibility import Visibility
from tests.compiler.support import ATTENTIONS, layout

TOLERANCE = 1e-12
CONTEXT = 6


class Running(fx.Interpreter):
    """Runs the graph of a unit on real weights, its parts by their graphs."""

    def __init__(self, unit: Unit, program: Program, module: nn.Module) -> None:
        super().__init__(module, graph=unit.graph)
        self.unit, self.program = unit, program

    def call_module(self, target: str, args: tuple, kwargs: dict) -> torch.Tensor:
        module = self.module.get_submodule(target)
        if target not in self.unit.parts:
            return module(*args, **kwargs)
        return Running(self.program.unit(self.unit.parts[target]), self.program, module).run(*args)


def program_at(name: str, opt: int) -> Program:
    program = assemble(layout(name), Options(opt=opt))
    run_passes(program)
    return program


def weights(program: Program) -> nn.Module:
    module = program.unit(program.stack[0]).module.to_empty(device="cpu").double()
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return module


def inputs(program: Program) -> tuple:
    generator = torch.Generator().manual_seed(4)
    facts = program.facts[0]
    block, context = (
        torch.randn(2, rows, 24, dtype=torch.float64, generator=generator).requires_grad_() for rows in (12, CONTEXT)
    )
    anchors = torch.tensor([[2, 6, -1], [0, 3, 5]])
    places = torch.arange(CONTEXT).expand(2, -1)
    positions = torch.cat([places, (anchors.clamp(min=0)[..., None] + torch.arange(4)).flatten(1)], dim=1)
    rope = None if facts.turn is None else rope_table(facts.turn, positions)
    backend = "eager" if facts.memory == "keys" else "kda_block"
    view = Visibility(anchors, places, 4).view(facts.window, facts.is_causal, CONTEXT, backend)
    return block, context, anchors, rope, view, NoMemory()


def measured(program: Program) -> list[torch.Tensor]:
    module, given = weights(program), inputs(program)
    out = Running(program.unit(program.stack[0]), program, module).run(*given)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(5))
    wanted = [given[0], *([given[1]] if program.layout.layers[0].attention.sees_context else []), *module.parameters()]
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), wanted)]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_outputs_and_gradients_agree(name: str) -> None:
    plain, fused = measured(program_at(name, 0)), measured(program_at(name, 2))
    assert len(plain) == len(fused)
    for expected, found in zip(plain, fused, strict=True):
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE * float(expected.abs().max()))


def joins(name: str) -> list[str]:
    reports = run_passes(assemble(layout(name), Options(opt=2)))
    return list(next(report.notes for report in reports if report.name == "fuse"))


def test_what_is_joined() -> None:
    assert joins("context") == ["ContextAttention: k_proj, v_proj", "GatedMLP: gate_proj, up_proj"]
    assert joins("latent")[0] == "GatedMLP: gate_proj, up_proj"
    assert joins("biased")[0] == "BiasedAttention: k_proj, v_proj"
    assert joins("recurrent")[:2] == [
        "RecurrentAttention: q_proj, k_proj, v_proj",
        "RecurrentAttention: f_a_proj, b_proj, g_a_proj",
    ]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_no_two_products_of_the_same_rows_are_left(name: str) -> None:
    """All shipped kinds have two, three or six linear layers with the same operand, or one."""
    for unit in program_at(name, 2).units:
        read = [
            (node.args[0], unit.module.get_submodule(node.target).bias is not None)
            for node in unit.graph.nodes
            if node.op == "call_module" and isinstance(unit.module.get_submodule(node.target), nn.Linear)
        ]
        assert len(read) == len(set(read))


def test_joined_values_have_names_and_a_statement_of_their_own() -> None:
    attention = program_at("context", 2).unit("ContextAttention")
    split = next(node for node in attention.graph.nodes if node.target == "split")
    assert split.meta["roles"] == ("k", "v")
    members = [node for node in attention.graph.nodes if node.meta.get("statement", 0) < 0]
    assert {(node.meta["statement"], node.meta["roles"]) for node in members} == {(-1, ("joined",)), (-2, ("k", "v"))}
    assert len(members) == 7
    assert "joined = F.linear(keyed, torch.cat([self.k_proj.weight, self.v_proj.weight]))" in "".join(
        body_lines(attention.graph)
    )


def test_the_module_tree_keeps_its_keys() -> None:
    plain, fused = program_at("recurrent", 0), program_at("recurrent", 2)
    assert list(plain.units[0].module.state_dict()) == list(fused.units[0].module.state_dict())
