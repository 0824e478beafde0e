"""Python sources as the linker sees them: top-level definitions with their text and the names they mention."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

from draftc.compiler.imports import Import, imports_of

MARKER = re.compile(r"  # (noqa|type: ignore|pragma)\b.*$")  # words to our own tools, not to readers of a bundle
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class Symbol:
    """A top-level name of one of our modules."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A top-level definition: its syntax, and the lines of its text with the comments that stand directly above."""

    node: ast.stmt
    lines: tuple[str, ...]
    offset: int

    @classmethod
    def of_text(cls, text: str) -> "Definition":
        """Return the one definition that `text` holds."""
        return cls(ast.parse(text).body[0], tuple(text.splitlines()), 0)

    def names_with(self, kept: frozenset[str]) -> tuple[str, ...]:
        """Global names that the definition mentions when only methods named in `kept` stay, by first mention."""
        parts = [part for part in self._parts if part not in self._dropped(kept)]
        return tuple(dict.fromkeys(name for part in parts for name in _free(part)))

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Global names that are evaluated when the definition is executed, bodies of functions left out."""
        return tuple(dict.fromkeys(_evaluated(self.node)))

    @property
    def prunable(self) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
        """Methods that may be left out: all but the special ones, of a class without bases."""
        if not isinstance(self.node, ast.ClassDef) or self.node.bases or self.node.keywords:
            return ()
        return tuple(
            found
            for found in self.node.body
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
            and not (found.name.startswith("__") and found.name.endswith("__"))
        )

    def attributes_with(self, kept: frozenset[str]) -> frozenset[str]:
        """Names of attributes mentioned by what stays when only methods named in `kept` stay."""
        parts = [part for part in self._parts if part not in self._dropped(kept)]
        return frozenset().union(*(_attributes(part) for part in parts))

    @property
    def _parts(self) -> tuple[ast.AST, ...]:
        """The definition in the pieces that pruning may take away one by one."""
        return tuple(ast.iter_child_nodes(self.node)) if self.prunable else (self.node,)

    def _dropped(self, kept: frozenset[str]) -> tuple[ast.AST, ...]:
        return tuple(found for found in self.prunable if found.name not in kept)

    def inner_imports(self, kept: frozenset[str]) -> tuple[ast.ImportFrom, ...]:
        """The `from` imports inside the bodies of what stays when only methods named in `kept` stay."""
        parts = [part for part in self._parts if part not in self._dropped(kept)]
        return tuple(node for part in parts for node in ast.walk(part) if isinstance(node, ast.ImportFrom))

    def text_with(self, kept: frozenset[str]) -> str:
        """Return the text, ending in a newline, without the methods that are not in `kept`."""
        gone: set[int] = set()
        for found in self.prunable:
            if found.name not in kept:
                gone.update(self._method_lines(found))
        lines = [MARKER.sub("", line) for number, line in enumerate(self.lines) if number not in gone]
        while lines and not lines[-1].strip():
            lines.pop()
        return "\n".join(lines) + "\n"

    def _method_lines(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
        """Lines of a method with the comments above it and the blank lines that part it from what stands before."""
        start = _first_line(method) - 1 - self.offset
        while start > 0 and self.lines[start - 1].strip().startswith("#"):
            start -= 1
        while start > 0 and not self.lines[start - 1].strip():
            start -= 1
        return range(start, (method.end_lineno or method.lineno) - self.offset)


@dataclass(frozen=True)
class Source:
    """A module of ours: its definitions by name, and what its imports bind."""

    module: str
    package: str
    definitions: Mapping[str, Definition]
    bound: Mapping[str, Import]
    tree: ast.Module
    text: str

    def resolve(self, name: str) -> Symbol | Import | None:
        """Return what `name` means at the top level of this module; None for builtins."""
        if name in self.definitions:
            return Symbol(self.module, name)
        found = self.bound.get(name)
        if found is None or not self.is_ours(found.module):
            return found
        return Symbol(found.module, found.name or "")

    def is_ours(self, module: str) -> bool:
        """Whether an absolute module name lies in the same top-level package."""
        return module.partition(".")[0] == self.module.partition(".")[0]

    def companion_of(self, node: ast.ImportFrom) -> str | None:
        """Return the module of ours that an import names, None for any other."""
        module = "." * node.level + (node.module or "")
        found = resolve_name(module, self.package) if node.level else module
        return found if self.is_ours(found) else None


@cache
def read_source(module: str) -> Source:
    """Parse `module`, found on the import path without being imported.

    Raises ModuleNotFoundError when there is none.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    text = Path(spec.origin).read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    definitions = {name: _definition(node, lines) for node in tree.body for name in defined_names(node)}
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = {found.bound: _absolute(found, spec.parent or "") for node in statements for found in imports_of(node)}
    return Source(module, spec.parent or "", definitions, bound, tree, text)


def _absolute(found: Import, package: str) -> Import:
    if not found.module.startswith("."):
        return found
    return Import(resolve_name(found.module, package), found.name, found.alias)


def defined_names(node: ast.stmt) -> tuple[str, ...]:
    """Names that a top-level definition or simple assignment defines; nothing for any other statement."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return ()


def _definition(node: ast.stmt, lines: list[str]) -> Definition:
    start = _first_line(node) - 1
    while start > 0 and lines[start - 1].startswith("#"):
        start -= 1
    return Definition(node, tuple(lines[start : node.end_lineno]), start)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(found.lineno for found in decorators)])


def free_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that `node` reads from outside of itself, string annotations included."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield name
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            yield from _head(node)
            bound = _bound(node)
            body = node.body if isinstance(node.body, list) else [node.body]
            yield from (name for part in body for name in free_names(part) if name not in bound)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            bound = _stored(node)
            yield from (name for part in ast.iter_child_nodes(node) for name in free_names(part) if name not in bound)
        case ast.AnnAssign():
            yield from _annotation(node.annotation)
            yield from (name for part in (node.target, node.value) if part for name in free_names(part))
        case _:
            for part in ast.iter_child_nodes(node):
                yield from free_names(part)


def _head(node: Function) -> Iterator[str]:
    """Yield the names in decorators, defaults and annotations."""
    for part in (*getattr(node, "decorator_list", []), *node.args.defaults, *node.args.kw_defaults):
        if part is not None:
            yield from free_names(part)
    for argument in _arguments(node.args):
        if argument.annotation is not None:
            yield from _annotation(argument.annotation)
    returns: ast.expr | None = getattr(node, "returns", None)
    if returns is not None:
        yield from _annotation(returns)


def _annotation(node: ast.expr) -> Iterator[str]:
    """Yield the names of an annotation, quoted ones included; the words of a Literal are no names."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=str(text)):
            yield from _annotation(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=ast.Name(id="Literal" as name)):
            yield name
        case _:
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    yield from _annotation(part)


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (found for found in (arguments.vararg, arguments.kwarg) if found is not None)


def _bound(node: Function) -> frozenset[str]:
    body = node.body if isinstance(node.body, list) else [node.body]
    stored = frozenset(name for part in body for name in _stored(part))
    return stored | {found.arg for found in _arguments(node.args)}


def _stored(node: ast.AST) -> frozenset[str]:
    """Names bound by `node` in its own scope: assignments, loops, imports, nested definitions."""
    found: set[str] = set()
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            found.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return frozenset({name})
        case ast.Lambda():
            return frozenset()
        case ast.Import() | ast.ImportFrom():
            found.update(entry.bound for entry in imports_of(node))
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            found.add(name)
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            found |= _stored(part)
    return frozenset(found)


def _evaluated(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _head(node)
        case ast.ClassDef():
            for part in (*node.decorator_list, *node.bases, *(found.value for found in node.keywords)):
                yield from free_names(part)
            for statement in node.body:
                yield from _evaluated(statement)
        case _:
            yield from free_names(node)


@cache
def _free(node: ast.AST) -> tuple[str, ...]:
    return tuple(dict.fromkeys(free_names(node)))


@cache
def _attributes(node: ast.AST) -> frozenset[str]:
    return frozenset(found.attr for found in ast.walk(node) if isinstance(found, ast.Attribute))
