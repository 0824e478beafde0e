"""The rules give every node the sizes and dtype that torch gives it, and misfits are said at the author's statement."""

import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from draftc.api import load
from draftc.compiler.dims import Dim, Lengths, as_dim, symbols
from draftc.compiler.errors import InternalError, ShapeError
from draftc.compiler.passes.annotate import Annotate
from draftc.compiler.program import Program, Unit, assemble
from draftc.compiler.shapes.infer import Inference
from draftc.compiler.shapes.torch_ops import FUNCTIONS, METHODS
from draftc.compiler.shapes.values import MisfitError, TensorValue
from draftc.compiler.trace import trace
from draftc.runtime.memory import NoMemory
from draftc.runtime.visibility import View
from draftc.spec.layout import Dflash, Layout
from tests.compiler.support import ATTENTIONS, layout, qwen3_8b

B, N, Q, C, P = symbols(16)
LENGTHS = Lengths(batch=1009, blocks=101, context=1_013, past=503)
FP32 = ("A_log", "dt_bias")
LAYOUTS = Path(__file__).parents[2] / "spec" / "layouts"


class Kept(NoMemory):
    """A memory that has kept rows before."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(torch.cat([x.new_empty(*x.shape[:-2], LENGTHS.past, x.shape[-1]), x], dim=-2) for x in (k, v))


class Watching(fx.Interpreter):
    """Runs a graph on meta tensors and compares every node with its notes."""

    def __init__(self, unit: Unit, program: Program) -> None:
        super().__init__(unit.module, graph=unit.graph)
        self.unit = unit
        self.program = program
        self.compared = 0

    def call_module(self, target: str, args: tuple, kwargs: dict) -> Any:
        """Parts take the inputs that they kept, so their graphs run in place of their modules."""
        if target not in self.unit.parts:
            return super().call_module(target, args, kwargs)
        part = Watching(self.program.unit(self.unit.parts[target]), self.program)
        result = part.run(*args)
        self.compared += part.compared
        return result

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        dims, dtypes = n.meta["dims"], n.meta["dtype"]
        if dims is not None:
            several = isinstance(dtypes, tuple)
            triples = zip(result, dims, dtypes, strict=True) if several else [(result, dims, dtypes)]
            for value, shape, dtype in triples:
                assert tuple(value.shape) == tuple(dim.evaluate(LENGTHS) for dim in shape), n.format_node()
                assert str(value.dtype) == f"torch.{dtype}", n.format_node()
                self.compared += 1
        return result

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """Operations that loop, or look at data, are stood in for by what their docstrings say of their results."""
        if target.__name__ == "attend":
            return args[0].new_empty(*args[0].shape[:-1], args[2].shape[-1])
        if target.__name__ == "kda":
            return torch.empty_like(args[2])
        if target.__name__ == "kda_states":
            batch, _, heads, width = args[0].shape
            return torch.empty(
                batch * args[7].shape[1],
                heads,
                width,
                width,
                device="meta",
                dtype=torch.promote_types(args[0].dtype, torch.float32),
            )
        return super().call_function(target, args, kwargs)


def concrete(node: fx.Node, keeps: bool) -> Any:
    """A meta tensor for an input, or the view, or a memory."""
    if node.target == "memory":
        return Kept() if keeps else NoMemory()
    if node.target == "view":
        live = torch.empty(LENGTHS.batch, LENGTHS.blocks * 16, dtype=torch.bool, device="meta")
        return View(None, "kda_block", 0.0, live)  # operations of attention are stood in for, those around kda are not
    pairs = (node.meta["dims"], node.meta["dtype"])
    shapes, dtypes = pairs if isinstance(pairs[1], tuple) else ((pairs[0],), (pairs[1],))
    made = tuple(
        torch.empty([dim.evaluate(LENGTHS) for dim in shape], dtype=getattr(torch, dtype), device="meta")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    return made if isinstance(pairs[1], tuple) else made[0]


def annotated(made: Layout) -> Program:
    program = assemble(made)
    Annotate().run(program)
    for unit in program.units:
        unit.module.to(getattr(torch, made.dtype))
        for key, parameter in unit.module.named_parameters():
            if key.split(".")[-1] in FP32:
                parameter.data = parameter.data.float()
    return program


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rules_agree_with_meta_tensors_on_every_node(name: str, dtype: str) -> None:
    assert_nodes_agree(annotated(layout(name, block_size=16, dtype=dtype)))


@pytest.mark.parametrize("path", sorted(LAYOUTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_rules_agree_on_every_shipped_layout(path: Path) -> None:
    """Block size is one of the compared constants, so it is the same everywhere; heads of families are no layers."""
    assert_nodes_agree(annotated(replace(load(path), family=Dflash(), block_size=16)))


def assert_nodes_agree(program: Program) -> None:
    """Run each layer class on meta tensors of prime sizes and compare all of its nodes, those of its parts included."""
    for unit in program.units:
        if unit.kind == "layer":
            watching = Watching(unit, program)
            inputs = unit.graph.find_nodes(op="placeholder")
            with torch.no_grad():
                watching.run(*(concrete(node, unit.facts.memory == "keys") for node in inputs))
            reached = [unit, *(program.unit(name) for name in unit.parts.values())]
            noted = [node.meta["dtype"] for part in reached for node in part.graph.nodes if node.meta["dtype"]]
            assert watching.compared == sum(len(dtype) if isinstance(dtype, tuple) else 1 for dtype in noted)


def test_names_at_the_width_of_qwen3_8b() -> None:
    program = assemble(qwen3_8b())
    Annotate().run(program)
    shown = {node.name: str(node.meta["dims"]) for node in program.unit("ContextAttention").graph.nodes}
    assert shown["cat"] == "(B, C+Q, 4096)"
    assert shown["getitem"] == "(B, 32, Q, 128)"
    assert shown["getitem_2"] == "(B, 8, P+C+Q, 128)"
    assert shown["rope"] == "((B, C+Q, 128), (B, C+Q, 128))"
    assert shown["o_proj"] == "(B, Q, 4096)"


def test_blocks_are_named_bn() -> None:
    program = assemble(layout("recurrent"))
    Annotate().run(program)
    shown = {node.name: str(node.meta["dims"]) for node in program.unit("RecurrentAttention").graph.nodes}
    assert shown["fold_blocks"] == "(BN, 4, 24)"


class Misfit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(24, 30)

    def forward(self, x: Tensor) -> Tensor:
        grown = self.wide(x)
        return grown + x


def unit_of(module: nn.Module) -> Unit:
    traced = trace(module)
    return Unit("Misfit", "mlp", "", module, traced.graph, traced.source, traced.source.parameters, (0,))


def infer(module: nn.Module, *shapes: tuple) -> Any:
    values = tuple(TensorValue(tuple(map(as_dim, shape)), "float32") for shape in shapes)
    return Inference("float32", lambda name: pytest.fail(name)).unit(unit_of(module), values)


def test_a_misfit_is_said_at_the_statement() -> None:
    with pytest.raises(ShapeError) as caught:
        infer(Misfit(), (B, Q, 24))
    assert "[B, Q, 30] and [B, Q, 24] do not broadcast" in caught.value.message
    assert caught.value.notes[1] == "`return grown + x`"
    with pytest.raises(ShapeError, match=r"\[B, Q, 25\] meets a linear layer for 24 channels"):
        infer(Misfit(), (B, Q, 25))


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erfinv(x)


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1, 2)


def test_a_missing_rule_is_a_fault_that_names_the_operation() -> None:
    with pytest.raises(InternalError, match="no shape rule for erfinv"):
        infer(Unknown(), (B, Q))
    with pytest.raises(InternalError, match="flatten does not take this call"):
        infer(Strange(), (B, Q))


def test_a_layer_that_changes_its_shape_is_refused() -> None:
    program = assemble(layout("context"))
    layer = program.unit("ContextLayer")
    output = layer.graph.output_node()
    with layer.graph.inserting_before(output):
        output.args = (layer.graph.call_method("transpose", (output.args[0], 0, 1)),)
    with pytest.raises(ShapeError, match=r"ContextLayer returns \[Q, B, 24\]"):
        Annotate().run(program)


def value(*sizes: Dim | int, dtype: str = "float32") -> TensorValue:
    return TensorValue(tuple(map(as_dim, sizes)), dtype)


RULES = {
    "chunk": ((2, -1), [(5, 8)]),
    "expand": ((-1, 6, -1), [(5, 1, 4)]),
    "flatten": ((-2,), [(5, 3, 4)]),
    "mean": ((-1, True), [(5, 3)]),
    "permute": ((2, 0, 1), [(5, 3, 4)]),
    "reshape": ((-1, 6), [(5, 3, 4)]),
    "split": (([3, 1], -1), [(5, 4)]),
    "squeeze": ((1,), [(5, 1, 4)]),
    "sum": ((0,), [(5, 3)]),
    "to": ((torch.bfloat16,), [(5, 3)]),
    "transpose": ((1, -1), [(5, 3, 4)]),
    "type_as": ((), [(5, 3), (2,)]),
    "unbind": ((1,), [(5, 3, 4)]),
    "unflatten": ((-1, (2, -1)), [(5, 8)]),
    "unsqueeze": ((-1,), [(5, 3)]),
    "view": (((3, 5, 4),), [(5, 3, 4)]),
    "view_as": ((), [(5, 3, 4), (15, 4)]),
    "contiguous": ((), [(5, 3)]),
    "float": ((), [(5, 3)]),
}


def test_every_method_rule_is_tried() -> None:
    assert RULES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", RULES)
def test_method_rules_agree_with_torch(name: str) -> None:
    arguments, shapes = RULES[name]
    tensors = [torch.zeros(shape) for shape in shapes]
    expected = getattr(tensors[0], name)(*tensors[1:], *arguments)
    found = METHODS[name](*(value(*shape) for shape in shapes), *arguments)
    assert described(found) == described(expected)


CALLS = {
    torch.cat: lambda call, a, b: call([a, a], dim=-1),
    torch.stack: lambda call, a, b: call([a, a], 1),
    torch.where: lambda call, a, b: call(a, b, 0),
    torch.matmul: lambda call, a, b: call(a, b),
    getattr: lambda call, a, b: call(a, "shape"),
    torch.nn.functional.linear: lambda call, a, b: call(a, a),
    torch.nn.functional.rms_norm: lambda call, a, b: call(a, (4,)),
}
OPERANDS = {torch.matmul: ((2, 5, 4), (4, 3)), torch.where: ((5, 1), (1, 4))}


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.__name__ != "getitem"], ids=lambda f: f.__name__)
def test_function_rules_agree_with_torch(function: Any) -> None:
    unary = {"gelu", "silu", "softplus", "neg", "exp", "sigmoid", "tanh"}
    default = (lambda call, a, b: call(a)) if function.__name__ in unary else (lambda call, a, b: call(a, b))
    shapes = OPERANDS.get(function, ((5, 4), (5, 4)))
    if function.__name__ == "matmul":
        shapes = OPERANDS[torch.matmul]
    call = CALLS.get(function, default)
    kinds = [torch.bool if function is torch.where and i == 0 else torch.float32 for i in range(2)]
    expected = call(function, *(torch.ones(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)))
    values = (value(*shape, dtype=str(kind)[6:]) for shape, kind in zip(shapes, kinds, strict=True))
    assert described(call(FUNCTIONS[function], *values)) == described(expected)


INDICES = [
    (0,),
    (-1, ...),
    (slice(None), None),
    (slice(1, None),),
    (slice(None, -1), 0),
    (..., slice(2)),
    (None, ..., None, 1),
    (slice(None), slice(1, 3), None),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_agrees_with_torch(index: tuple) -> None:
    rule = FUNCTIONS[operator.getitem]
    assert described(rule(value(5, 4, 3), index)) == described(torch.zeros(5, 4, 3)[index])


def test_indexing_in_letters() -> None:
    rule = FUNCTIONS[operator.getitem]
    assert rule(value(B, C + 3, 8), (slice(None), slice(3, None))) == value(B, C, 8)
    assert rule(value(B, C, 8), (slice(None), slice(None, -3))) == value(B, C - 3, 8)


WRONG = [
    ("reshape", (value(B, 6), -1, 4)),
    ("unflatten", (value(B, 6), -1, (4, 2))),
    ("split", (value(B, 6), (4, 3), -1)),
    ("expand", (value(B, 6), -1, 7)),
    ("transpose", (value(B, 6), 0, 2)),
    ("squeeze", (value(B, 6), 1)),
    ("chunk", (value(B, 7), 2, -1)),
    ("unbind", (value(B, C), 1)),
    ("permute", (value(B, C), 0, 0)),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_method_rules_refuse_what_torch_refuses(name: str, arguments: tuple) -> None:
    with pytest.raises(MisfitError):
        METHODS[name](*arguments)


def test_half_floats_meet_in_float32() -> None:
    add = FUNCTIONS[operator.add]
    assert add(value(5, dtype="bfloat16"), value(5, dtype="float16")).dtype == "float32"
    assert add(value(5, dtype="bfloat16"), value(5, dtype="float32")).dtype == "float32"
    assert add(value(5, dtype="bfloat16"), 1.5).dtype == "bfloat16"
    assert add(value(5, dtype="int64"), 1.5).dtype == "float32"
    assert add(value(5, dtype="int64"), 1).dtype == "int64"


def described(result: Any) -> Any:
    """Sizes and dtype of a result of torch or of a rule, in one form."""
    if isinstance(result, torch.Size):
        return tuple(result)
    if isinstance(result, tuple):
        return tuple(map(described, result))
    if isinstance(result, Tensor):
        return tuple(result.shape), str(result.dtype).removeprefix("torch.")
    if isinstance(result, Dim):
        return result.constant
    return tuple(dim.constant for dim in result.shape), result.dtype
