"""From a reference module to a torch.fx graph whose nodes know the author's statements.

Every child of the traced module is a leaf, and every function of `draftc.runtime` that its forward calls by bare name
is an operation of its own: a graph holds exactly what the author wrote in one `forward`. `node.meta["statement"]` is
the first line of the author's statement (in its file), `node.meta["roles"]` the names which that statement assigns.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from torch import fx, nn

from draftc.compiler.errors import UntraceableError

RUNTIME = "draftc.runtime"
FAILURES = (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, LookupError, AttributeError)
HINTS = (
    ("absent", "make the input required, or decide by a constant of the constructor whether the forward reads it"),
    ("branch", "branch on a constant of the constructor, or use torch.where on the values"),
    ("iterate", "unpack a fixed number of results (`a, b = op(...)`), or use a tensor operation"),
    ("measure", "pass the number to the constructor, or leave it to the operation (-1 in reshape, unflatten, expand)"),
    ("other", "a reference forward is straight-line code of tensor operations and calls by bare name"),
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a forward: its first line in the file, its text on one line, and the names it assigns."""

    line: int
    text: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a forward is written: file, first line, and the statement to which each line belongs."""

    file: str
    line: int
    lines: Mapping[int, Statement]
    parameters: tuple[str, ...]

    def at(self, line: int) -> Statement | None:
        """Return the statement that covers `line` of the file, or None."""
        return self.lines.get(line)


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, and the text that it came from."""

    graph: fx.Graph
    source: Source


def trace(module: nn.Module, path: str = "") -> Traced:
    """Trace the forward of `module`; `path` names the module in errors (`layers.0.self_attn`).

    Raises `UntraceableError`, with the line and a way out, where the forward depends on values or shapes of tensors.
    """
    forward = inspect.unwrap(type(module).forward)
    source = source_of(forward)
    tracer = LayerTracer(source, forward.__code__, ops_of(forward))
    try:
        _refuse_identity(forward, source)
        graph = tracer.trace(module)
    except FAILURES as error:
        raise _untraceable(error, path or type(module).__name__, source, forward.__code__) from error
    for node in graph.nodes:
        node.meta.pop("is_wrapped", None)
        if node.op == "placeholder":
            node.meta.update(statement=source.line, roles=(node.target,))
    return Traced(graph, source)


class LayerTracer(fx.Tracer):
    """Traces one forward: its children and the operations `ops` stay whole, nodes learn their statements."""

    def __init__(self, source: Source, code: CodeType, ops: tuple[Callable[..., Any], ...]) -> None:
        super().__init__(autowrap_functions=ops)
        self._source = source
        self._code = code

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 - torch's signature
        """Whether `m` stays one node: always, since each class is traced for itself."""
        return True

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Make a node and note the statement of the traced forward that asked for it."""
        node = super().create_node(*args, **kwargs)
        node.meta.clear()
        statement = self._statement()
        if statement is not None:
            node.meta.update(statement=statement.line, roles=statement.roles)
        return node

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Refuse a branch on a value."""
        raise _Refused("branch", f"branches on the value of {obj.node.name}")

    def iter(self, obj: fx.Proxy) -> Iterator[fx.Proxy]:
        """Refuse a loop over a value; unpacking a fixed number of results does not come here."""
        raise _Refused("iterate", f"loops over {obj.node.name}")

    def _statement(self) -> Statement | None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return None if frame is None else self._source.at(frame.f_lineno)


class _Refused(fx.proxy.TraceError):
    """Control flow that a graph cannot hold: the word of its hint, what was done, and the line if it never ran."""

    def __init__(self, word: str, what: str, line: int | None = None) -> None:
        self.word = word
        self.line = line
        super().__init__(what)


def ops_of(forward: FunctionType) -> tuple[Callable[..., Any], ...]:
    """Return the functions of draftc.runtime that the module of `forward` holds by name.

    torch leaves what it compiled there as well, functions of no module.
    """
    held = [value for value in forward.__globals__.values() if isinstance(value, FunctionType)]
    return tuple(value for value in held if (value.__module__ or "").startswith(RUNTIME))


@cache
def source_of(forward: FunctionType) -> Source:
    """Return the text of `forward`, cut into statements by its syntax tree."""
    text, tree, first = _parsed(forward)
    lines = text.splitlines()
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
            statement = Statement(node.lineno + first - 1, _words(node, lines), tuple(_assigned(node)))
            found.update({line + first - 1: statement for line in range(node.lineno, _last(node) + 1)})
    parameters = tuple(inspect.signature(forward).parameters)[1:]
    return Source(inspect.getsourcefile(forward) or "", first, found, parameters)


@cache
def _parsed(forward: FunctionType) -> tuple[str, ast.stmt, int]:
    lines, first = inspect.getsourcelines(forward)
    text = textwrap.dedent("".join(lines))
    return text, ast.parse(text).body[0], first


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _words(node: ast.stmt, lines: list[str]) -> str:
    """The statement on one line; of a compound statement only its header."""
    body = getattr(node, "body", None)
    last = max(node.lineno, body[0].lineno - 1) if body else _last(node)
    return " ".join(" ".join(lines[node.lineno - 1 : last]).split())


def _refuse_identity(forward: FunctionType, source: Source) -> None:
    """Refuse `x is None` for an input: while tracing it is never None, so one branch would silently win."""
    _, tree, first = _parsed(forward)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            names = [side.id for side in (node.left, *node.comparators) if isinstance(side, ast.Name)]
            tested = [name for name in names if name in source.parameters]
            if tested:
                raise _Refused("absent", f"asks whether {tested[0]} is None", node.lineno + first - 1)


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        yield from (part.id for part in parts if isinstance(part, ast.Name))


def _untraceable(error: Exception, path: str, source: Source, code: CodeType) -> UntraceableError:
    line = _line_in(error.__traceback__, code)
    line = error.line or line if isinstance(error, _Refused) else line
    statement = source.at(line) if line else None
    where = f"{source.file}:{line or source.line}"
    notes = (where, f"`{statement.text}`") if statement else (where,)
    word, what = _reason(error)
    return UntraceableError(f"forward of {path} cannot be traced: it {what}", notes=notes, help=dict(HINTS)[word])


def _reason(error: Exception) -> tuple[str, str]:
    if isinstance(error, _Refused):
        return error.word, str(error)
    counts = ("cannot be interpreted as an integer", "'len' is not supported", "int() argument", "float() argument")
    if any(text in str(error) for text in counts):
        return "measure", "reads a size or a value of a tensor as a Python number"
    return "other", f"raises {type(error).__name__}: {error}"


def _line_in(traceback: TracebackType | None, code: CodeType) -> int | None:
    line = None
    while traceback is not None:
        line = traceback.tb_lineno if traceback.tb_frame.f_code is code else line
        traceback = traceback.tb_next
    return line
