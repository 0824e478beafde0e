"""A unit of the program as the text of a Python class, with what the text mentions from elsewhere."""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx, nn

from draftc.compiler.build import Facts
from draftc.compiler.errors import InternalError
from draftc.compiler.expressions import function_name
from draftc.compiler.imports import LINE_LENGTH, Import
from draftc.compiler.pretty import Group, Piece, call, laid_out, literal
from draftc.compiler.printer import INDENT, body_lines
from draftc.compiler.program import Unit
from draftc.compiler.sources import Symbol, free_names, read_source

RUNTIME = "draftc.runtime"
CHECKPOINTED = Import("transformers.modeling_layers", "GradientCheckpointingLayer")
TORCH = {
    "torch": Import("torch"),
    "F": Import("torch.nn.functional", None, "F"),
    "nn": Import("torch", "nn"),
}


@dataclass(frozen=True, slots=True)
class Printed:
    """Text of a class, the definitions of `runtime/` that it mentions, and the imports that it needs."""

    text: str
    symbols: tuple[Symbol, ...]
    imports: frozenset[Import]
    attributes: frozenset[str]


def print_class(unit: Unit) -> Printed:
    """Return `unit` as a class: constructor with the real widths, forward as straight-line code.

    A decoding form has the constructor of the attention that it derives from.
    """
    constructor = () if unit.form_of else (_constructor(unit),)
    parts = [_head(unit), *_facts(unit), *constructor, _forward(unit)]
    text = "\n".join(parts)
    known = _known(unit)
    tree = ast.parse(text)
    emitted = {*unit.parts.values(), unit.form_of}
    found = [known.get(name, name) for name in dict.fromkeys(free_names(tree)) if name not in emitted]
    for name in found:
        if isinstance(name, str) and not hasattr(builtins, name):
            raise InternalError(f"class {unit.name} mentions {name}, whose origin is unknown")
    return Printed(
        text,
        tuple(name for name in found if isinstance(name, Symbol)),
        frozenset(name for name in found if isinstance(name, Import)),
        frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)),
    )


def docstring(text: str, indent: int) -> str:
    """Return `text` as a docstring; what does not fit on its line becomes a summary, up to the colon, and a body."""
    pad = " " * indent
    if indent + len(text) + 6 <= LINE_LENGTH:
        return f'{pad}"""{text}"""\n'
    summary, _, rest = text.partition(": ")
    body = textwrap.fill(rest[:1].upper() + rest[1:], LINE_LENGTH, initial_indent=pad, subsequent_indent=pad)
    return f'{pad}"""{summary}.\n\n{body}\n{pad}"""\n'


def _head(unit: Unit) -> str:
    return f"class {unit.name}({_base_name(unit)}):\n{docstring(unit.doc, 4)}"


def _base_name(unit: Unit) -> str:
    """Layers are units of gradient checkpointing; their reference form is not, since that would import models."""
    return CHECKPOINTED.bound if unit.kind == "layer" else unit.form_of or "nn.Module"


def _facts(unit: Unit) -> Iterator[str]:
    """What the model reads from a layer class."""
    if unit.facts is None:
        return
    named = _fact_pieces(unit.facts)
    yield "".join(f"    {name} = {laid_out(piece, 4, 7 + len(name))}\n" for name, piece in named.items())


def _fact_pieces(facts: Facts) -> dict[str, Piece]:
    turn: Piece = "None"
    if facts.turn is not None:
        defaults = type(facts.turn)._field_defaults
        stated = {key: value for key, value in facts.turn._asdict().items() if value != defaults.get(key, ...)}
        turn = call("Turn", **stated)
    return {
        "window": literal(facts.window),
        "is_causal": literal(facts.is_causal),
        "turn": turn,
        "memory": literal(facts.memory),
    }


def _constructor(unit: Unit) -> str:
    lines = ["    def __init__(self) -> None:", "        super().__init__()"]
    for name, parameter in unit.module.named_parameters(recurse=False):
        shape = ", ".join(str(size) for size in parameter.shape)
        lines.append(f"        self.{name} = nn.Parameter(torch.zeros({shape}))")
    for name, child in unit.module.named_children():
        lines.append(f"        self.{name} = {_made(unit, name, child)}")
    return "\n".join(lines) + "\n"


def _made(unit: Unit, name: str, child: nn.Module) -> str:
    """The call that makes a child: a unit, a linear map, or a leaf whose `extra_repr` reads like its arguments."""
    if name in unit.parts:
        return f"{unit.parts[name]}()"
    if type(child) is nn.Linear:
        bias = "" if child.bias is not None else ", bias=False"
        return f"nn.Linear({child.in_features}, {child.out_features}{bias})"
    return f"{type(child).__name__}({child.extra_repr()})"


def _forward(unit: Unit) -> str:
    lines = [_signature(unit), *(f"{' ' * INDENT}{line}" for line in body_lines(unit.graph))]
    return "\n".join(lines) + "\n"


def _signature(unit: Unit) -> str:
    annotations, returns = _annotations(unit)
    arguments: tuple[Piece, ...] = ("self", *(f"{name}: {annotations[name]}" for name in unit.inputs))
    group = Group("def forward(", arguments, f") -> {returns}:")
    return f"    {laid_out(group, 4, 4)}"


def _annotations(unit: Unit) -> tuple[Mapping[str, str], str]:
    definition = _forward_syntax(unit)
    arguments = definition.args.args[1:]
    found = {entry.arg: ast.unparse(entry.annotation) for entry in arguments if entry.annotation is not None}
    return found, ast.unparse(definition.returns) if definition.returns else "Tensor"


def _forward_syntax(unit: Unit) -> ast.FunctionDef:
    definition = ast.parse(textwrap.dedent(inspect.getsource(type(unit.module).forward))).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise InternalError(f"forward of {type(unit.module).__name__} is no plain function")
    return definition


def _known(unit: Unit) -> Mapping[str, Symbol | Import]:
    """What the names of the text may mean: annotations, leaf classes, operations, the base, and torch."""
    known: dict[str, Symbol | Import] = dict(TORCH)
    known |= {CHECKPOINTED.bound: CHECKPOINTED, "Turn": Symbol(f"{RUNTIME}.rope", "Turn")}
    source = read_source(inspect.unwrap(type(unit.module).forward).__module__)
    for name in free_names(_forward_syntax(unit)):
        found = source.resolve(name)
        if found is not None:
            known[name] = found
    for child in unit.module.children():
        known.setdefault(type(child).__name__, Symbol(type(child).__module__, type(child).__name__))
    for node in unit.graph.nodes:
        known.update(_operation(node))
    return known


def _operation(node: fx.Node) -> Mapping[str, Symbol]:
    target = node.target
    module = getattr(target, "__module__", None) or ""
    if callable(target) and module.startswith(RUNTIME):
        return {function_name(target): Symbol(module, target.__name__)}
    return {}
