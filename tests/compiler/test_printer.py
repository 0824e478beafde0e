"""Printed classes compute, bit for bit, what the reference modules compute, and read as an author would write them."""

import ast
import importlib
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import fx, nn

from draftc.compiler.build import decoder_layer
from draftc.compiler.classes import print_class
from draftc.compiler.expressions import Expression, expression
from draftc.compiler.imports import Import, import_block
from draftc.compiler.passes.annotate import Annotate
from draftc.compiler.pretty import Group, call, laid_out, literal
from draftc.compiler.printer import body_lines
from draftc.compiler.program import Program, assemble
from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import rope_table
from draftc.runtime.visibility import Visibility
from tests.compiler.support import ATTENTIONS, layout, qwen3_8b

CONTEXT, ANCHORS = 11, ((3, 9, -1), (0, 7, 11))


def program_of(name: str) -> Program:
    program = assemble(layout(name))
    Annotate().run(program)
    return program


def printed_classes(program: Program) -> dict[str, type[nn.Module]]:
    """Execute the printed classes with the names that they ask for."""
    names: dict[str, object] = {}
    for unit in program.units:
        printed = print_class(unit)
        names |= {
            symbol.name: getattr(importlib.import_module(symbol.module), symbol.name) for symbol in printed.symbols
        }
        exec(import_block({*printed.imports, Import("torch", "Tensor")}), names)
        exec(compile(printed.text, unit.name, "exec"), names)
    return {unit.name: names[unit.name] for unit in program.units}


def inputs(program: Program) -> tuple:
    config, facts = program.layout, program.facts[0]
    generator = torch.Generator().manual_seed(1)
    anchors = torch.tensor(ANCHORS)
    rows = torch.randn(2, CONTEXT + 3 * config.block_size, config.hidden_size, generator=generator, dtype=torch.float64)
    context, block = rows[:, :CONTEXT].clone().requires_grad_(), rows[:, CONTEXT:].clone().requires_grad_()
    places = torch.arange(CONTEXT).expand(2, -1)
    slots = (anchors.clamp(min=0)[..., None] + torch.arange(config.block_size)).flatten(1)
    rope = None if facts.turn is None else rope_table(facts.turn, torch.cat([places, slots], dim=1))
    backend = "eager" if facts.memory == "keys" else "kda_block"
    view = Visibility(anchors, places, config.block_size).view(facts.window, facts.is_causal, CONTEXT, backend)
    return block, context, anchors, rope, view, NoMemory()


def run(layer: nn.Module, given: tuple) -> list[torch.Tensor]:
    """Output and gradients of inputs and parameters."""
    wanted = [value for value in given[:2] if value.requires_grad] + list(layer.parameters())
    out = layer(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)
    return [out, *(torch.zeros(1) if gradient is None else gradient for gradient in found)]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_printed_layer_equals_the_reference_bit_for_bit(name):
    program = program_of(name)
    reference = decoder_layer(program.layout.layers[0], program.layout).double()
    torch.manual_seed(0)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    printed = printed_classes(program)[program.stack[0]]().double()
    printed.load_state_dict(reference.state_dict())
    assert list(printed.state_dict()) == list(reference.state_dict())
    given = inputs(program)
    expected, found = run(reference, given), run(printed, given)
    assert expected[0].abs().max() > 0
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_layer_classes_carry_the_facts_that_the_model_reads(name):
    program = program_of(name)
    printed, facts = printed_classes(program)[program.stack[0]], program.facts[0]
    found = (printed.window, printed.is_causal, printed.turn, printed.memory)
    assert found == (facts.window, facts.is_causal, facts.turn, facts.memory)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_name_is_the_authors(name):
    """A value without a name of its author's would be called after its operation, with a number when taken."""
    program = program_of(name)
    for unit in program.units:
        forward = next(node for node in ast.walk(ast.parse(print_class(unit).text)) if is_forward(node))
        stored = {
            node.id for node in ast.walk(forward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        written = {role for statement in unit.source.lines.values() for role in statement.roles}
        assert stored <= written


def is_forward(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "forward"


@pytest.mark.parametrize("name", ATTENTIONS)
def test_text_is_a_fixed_point_of_ruff_format(name):
    text = "\n\n".join(print_class(unit).text for unit in program_of(name).units)
    assert ruff_format(text) == text


def ruff_format(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_attention_of_qwen3_8b_reads_as_designed():
    program = assemble(qwen3_8b())
    Annotate().run(program)
    text = print_class(program.unit("ContextAttention")).text
    assert text[text.index("        keyed") :] == (
        "        keyed = torch.cat([context, block], dim=1)  # [B, C+Q, 4096]\n"
        "        q = self.q_proj(block).unflatten(-1, (32, 128)).transpose(1, 2)  # [B, 32, Q, 128]\n"
        "        k = self.k_proj(keyed).unflatten(-1, (8, 128)).transpose(1, 2)  # [B, 8, C+Q, 128]\n"
        "        v = self.v_proj(keyed).unflatten(-1, (8, 128)).transpose(1, 2)  # [B, 8, C+Q, 128]\n"
        "        q = self.q_norm(q)  # [B, 32, Q, 128]\n"
        "        k = self.k_norm(k)  # [B, 8, C+Q, 128]\n"
        "        q, k = rotate_half(q, k, rope)  # [B, 32, Q, 128]\n"
        "        k, v = memory.update(k, v)  # [B, 8, P+C+Q, 128]\n"
        "        out = attend(q, k, v, view, scale=128**-0.5)  # [B, 32, Q, 128]\n"
        "        out = out.transpose(1, 2).flatten(-2)  # [B, Q, 4096]\n"
        "        return self.o_proj(out)  # [B, Q, 4096]\n"
    )


class Scratch:
    """A graph made by hand."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.line = 0

    def input(self, name: str) -> fx.Node:
        return self.graph.placeholder(name)

    def method(self, name: str, *args: object, line: int, roles: tuple[str, ...] = ()) -> fx.Node:
        node = self.graph.call_method(name, args)
        node.meta.update(statement=line, roles=roles)
        return node

    def lines(self, value: object) -> tuple[str, ...]:
        self.graph.output(value)
        return body_lines(self.graph)


def test_a_name_is_used_again_only_when_its_value_is_dead():
    scratch = Scratch()
    x = scratch.input("x")
    first = scratch.method("relu", x, line=1, roles=("y",))
    second = scratch.method("sigmoid", first, line=2, roles=("y",))
    third = scratch.method("add", second, first, line=3, roles=("y",))
    assert scratch.lines(third) == ("y = x.relu()", "y_2 = y.sigmoid()", "y = y_2.add(y)", "return y")


def test_an_input_keeps_its_name_while_it_is_used():
    scratch = Scratch()
    x = scratch.input("x")
    first = scratch.method("relu", x, line=1, roles=("x",))
    second = scratch.method("add", first, x, line=2, roles=("x",))
    assert scratch.lines(second) == ("x_2 = x.relu()", "x = x_2.add(x)", "return x")


def test_a_value_used_twice_in_its_statement_gets_a_line():
    scratch = Scratch()
    x = scratch.input("x")
    part = scratch.method("relu", x, line=1, roles=("y",))
    whole = scratch.method("add", part, part, line=1, roles=("y",))
    assert scratch.lines(whole) == ("relu = x.relu()", "y = relu.add(relu)", "return y")


def test_a_line_that_is_too_long_gives_its_longest_part_a_line_of_its_own():
    scratch = Scratch()
    x = scratch.input("x")
    long = scratch.method("a" * 40, x, 1, line=1, roles=("y",))
    short = scratch.method("b" * 20, x, line=1, roles=("y",))
    whole = scratch.method("c" * 40, long, short, line=1, roles=("y",))
    lines = scratch.lines(whole)
    assert lines[0] == f"{'a' * 40} = x.{'a' * 40}(1)" or len(lines) == 3
    assert all(len(line) <= 112 for line in lines)


def test_a_call_for_its_effect_is_a_statement():
    scratch = Scratch()
    x = scratch.input("x")
    scratch.method("record", x, line=1)
    assert scratch.lines(x) == ("x.record()", "return x")


@pytest.mark.parametrize(
    "source",
    [
        "(x + y) * z",
        "x + y * z",
        "x - (y - z)",
        "x - y - z",
        "-(x + y)",
        "(-x) ** 2",
        "-(x**2)",
        "(x @ y).relu()",
        "x[:, None, ..., 1:-1, ::2]",
        "(x * y)[:, :-3]",
        "2 ** (x + 1)",
        "(x > y) & (y > z)",
        "~(x | y)",
        "x.shape[0] - 1",
        "(x // 2) % 3",
    ],
)
def test_expressions_keep_their_meaning_with_the_fewest_brackets(source):
    graph = fx.Tracer().trace(traced(source))
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    text = whole(output).text
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
    assert ruff_format(text + "\n") == text + "\n"


def traced(source: str) -> nn.Module:
    scope: dict[str, object] = {"nn": nn}
    exec(f"class Source(nn.Module):\n    def forward(self, x, y, z):\n        return {source}\n", scope)
    return scope["Source"]()


def whole(node: fx.Node) -> Expression:
    return Expression(str(node.target)) if node.op == "placeholder" else expression(node, whole)


def test_numbers_are_exact():
    class Numbers(nn.Module):
        def forward(self, x):
            return torch.nn.functional.softmax(x * 128**-0.5 * 0.1352337788608801 * 0.5, dim=-1)

    output = next(node for node in fx.Tracer().trace(Numbers()).nodes if node.op == "output").args[0]
    assert whole(output).text == "F.softmax(x * 128**-0.5 * 0.1352337788608801 * 0.5, dim=-1)"


VALUES = [
    {("training", "cpu"): ("sdpa",) * 5, ("decoding", "cuda"): ("kda_block",) * 40},
    tuple(float(number) for number in range(64)),
    ("a" * 130,),
    [["x" * 60, "y" * 60], []],
    "it's",
    'say "x"',
    None,
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("indent", [0, 4])
def test_literals_are_laid_out_as_ruff_does(value, indent):
    head = " " * indent + "value = "
    text = head + laid_out(literal(value), indent, len(head)) + "\n"
    block = "if True:\n" * bool(indent) + text
    assert ruff_format(block) == block
    assert ast.literal_eval(ast.parse(text.strip()).body[0].value) == value


@pytest.mark.parametrize("count", [1, 3, 9])
def test_calls_are_laid_out_as_ruff_does(count):
    turn = call(
        "Turn", dim=8, scaling=tuple((f"factor_{number}", number / 2) for number in range(count)), rest="x" * 60
    )
    text = "turn = " + laid_out(Group("(", (turn, "y"), ")"), 0, 7) + "\n"
    assert ruff_format(text) == text


def test_what_has_no_literal_is_refused():
    with pytest.raises(TypeError, match="object has no literal"):
        literal({"a": object()})


def test_a_window_makes_a_layer_of_its_own_that_shares_its_attention():
    near = replace(ATTENTIONS["context"], sliding_window=9, is_causal=True)
    program = assemble(layout("context", "near", attentions={"context": ATTENTIONS["context"], "near": near}))
    classes = printed_classes(program)
    assert program.stack == ("ContextLayer", "NearLayer")
    assert "NearAttention" not in classes
    assert classes["NearLayer"].window == 9


def test_a_line_of_names_alone_that_has_no_room_for_its_shape_goes_without():
    scratch = Scratch()
    x = scratch.input("x")
    attributes = [scratch.graph.get_attr("a" * 40), scratch.graph.get_attr("b" * 40)]
    node = scratch.method("mix", x, *attributes, line=1, roles=("y",))
    node.meta["dims"] = ("B", "Q", 128)
    assert scratch.lines(node) == (f"y = x.mix(self.{'a' * 40}, self.{'b' * 40})", "return y")


@pytest.mark.parametrize("count", [3, 5, 9])
def test_a_call_with_no_part_to_name_is_opened_as_ruff_does(count):
    scratch = Scratch()
    x = scratch.input("x")
    attributes = [scratch.graph.get_attr(f"{letter * 20}.weight") for letter in "abcdefghi"[:count]]
    node = scratch.graph.call_function(torch.cat, (attributes,))
    node.meta.update(statement=1, roles=("joined",))
    whole = scratch.method("add", x, node, line=2, roles=("y",))
    text = "class A:\n    def f(self, x):\n" + "".join(f"        {line}\n" for line in scratch.lines(whole))
    assert max(map(len, text.splitlines())) <= 120
    assert ruff_format(text) == text
