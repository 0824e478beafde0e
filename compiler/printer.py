"""A graph as the straight-line forward that its author would have written for these widths.

Nodes of one statement of the reference fold back into one line, values have the names that the author assigned, and
each line carries the shape of its value. A name is used again only when its earlier value has no later use. A line that
would be too long gives its longest folded part a line of its own; the text is a fixed point of `ruff format`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from draftc.compiler.expressions import Expression, arguments_text, expression
from draftc.compiler.imports import LINE_LENGTH
from draftc.compiler.pretty import Group, Piece, Prefixed, laid_out

CODE_LENGTH = 100
INDENT = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One statement: its code, the shape of its value, and the nodes that were folded into it."""

    code: str
    shape: str
    folded: tuple[fx.Node, ...]

    @property
    def commented(self) -> str:
        """Code and comment."""
        return f"{self.code}  # {self.shape}" if self.shape else self.code

    @property
    def fits(self) -> bool:
        """Whether code and comment stay within the line behind the indentation of a method."""
        return INDENT + len(self.commented) <= LINE_LENGTH

    @property
    def text(self) -> str:
        """Code with its comment; without it where only the code fits, and on several lines where that does not."""
        if self.fits:
            return self.commented
        return self.code if INDENT + len(self.code) <= LINE_LENGTH else _opened(self.code)

    @property
    def longest_part(self) -> fx.Node | None:
        """Of a line that is too long, the folded node with the longest text: it most deserves a line of its own."""
        if self.fits and len(self.code) <= CODE_LENGTH:
            return None
        return max(self.folded, key=lambda node: len(_whole(node).text), default=None)


def body_lines(graph: fx.Graph) -> tuple[str, ...]:
    """Return the statements of a forward that computes `graph`, their first lines without indentation."""
    apart: set[fx.Node] = set()
    while True:
        lines = tuple(_Writer(graph, apart).lines())
        longest = next((line.longest_part for line in lines if line.longest_part is not None), None)
        if longest is None:
            return tuple(line.text for line in lines)
        apart.add(longest)


def _whole(node: fx.Node) -> Expression:
    return expression(node, lambda found: Expression(found.name) if found.op == "placeholder" else _whole(found))


def _opened(code: str) -> str:
    """A statement that ends in a call, on several lines; all but the first are indented."""
    value = getattr(ast.parse(code).body[0], "value", None)
    if not isinstance(value, ast.expr):
        return code
    head = code[: value.col_offset]
    return head + laid_out(_piece(value), INDENT, INDENT + len(head))


def _piece(value: ast.expr) -> Piece:
    """Calls and lists in the pieces that may be parted; anything else whole."""
    match value:
        case ast.Call(func=function, args=arguments, keywords=named):
            keywords = tuple(Prefixed(f"{entry.arg}=", _piece(entry.value)) for entry in named)
            return Group(f"{ast.unparse(function)}(", (*map(_piece, arguments), *keywords), ")")
        case ast.List(elts=items):
            return Group("[", tuple(map(_piece, items)), "]")
        case _:
            return ast.unparse(value)


@dataclass
class _Writer:
    """Walks a graph once. `names` holds the name of each value that has one, `folded` what waits for its user."""

    graph: fx.Graph
    apart: set[fx.Node]
    names: dict[fx.Node, str] = field(default_factory=dict)
    waiting: dict[fx.Node, Expression] = field(default_factory=dict)
    parts: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    places: dict[fx.Node, int] = field(default_factory=dict)

    def lines(self) -> Iterator[Line]:
        """Yield the statements in order."""
        self.places = {node: place for place, node in enumerate(self.graph.nodes)}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.names[node] = str(node.target)
            elif node.op == "output":
                yield self.returned(node)
            elif not self.is_unpacked(node):
                yield from self.stated(node)

    def stated(self, node: fx.Node) -> Iterator[Line]:
        """Fold `node` into its user, or yield the statement that names its value."""
        found = expression(node, self.lookup)
        folded = tuple(part for source in node.all_input_nodes for part in self.parts_of(source))
        if self.folds(node):
            self.waiting[node] = found
            self.parts[node] = (*folded, node) if node.op != "get_attr" else ()
            return
        results = unpacked(node)
        if results:
            names = [self.name(result) for result in results]
            yield Line(f"{', '.join(names)} = {found.text}", shape_of(results[0]), folded)
        elif node.users:
            yield Line(f"{self.name(node)} = {found.text}", shape_of(node), folded)
        else:
            yield Line(found.text, "", folded)

    def returned(self, node: fx.Node) -> Line:
        """The return statement."""
        value: Any = node.args[0]
        shown = value[0] if isinstance(value, tuple | list) else value
        folded = tuple(part for source in node.all_input_nodes for part in self.parts_of(source))
        code = f"return {arguments_text(value, self.lookup).text}"
        named = isinstance(shown, fx.Node) and shown in self.names
        return Line(code, "" if named or not isinstance(shown, fx.Node) else shape_of(shown), folded)

    def lookup(self, node: fx.Node) -> Expression:
        """What stands for an input: its name, or the expression that was folded."""
        return Expression(self.names[node]) if node in self.names else self.waiting[node]

    def parts_of(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Nodes that were folded into the expression of `node`, itself included."""
        return () if node in self.names else self.parts.get(node, ())

    def is_unpacked(self, node: fx.Node) -> bool:
        """Whether `node` is one of several results that the statement of its operation names."""
        source = node.args[0] if node.args else None
        return isinstance(source, fx.Node) and node in unpacked(source)

    def folds(self, node: fx.Node) -> bool:
        """Whether the only use of `node` is in the same statement, or is to be returned without a name."""
        if node.op == "get_attr":
            return bool(node.users)
        if node in self.apart or mentions(node) != 1 or unpacked(node):
            return False
        user = next(iter(node.users))
        if user.op == "output":
            return not roles_of(node)
        return statement_of(node) is not None and statement_of(node) == statement_of(user)

    def name(self, node: fx.Node) -> str:
        """Choose the name of `node`: its author's, made unique while an earlier value of that name is still used."""
        wanted = self.wanted(node)
        taken = {name for other, name in self.names.items() if other is not node and self.is_used_after(other, node)}
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        self.names[node] = name
        return name

    def wanted(self, node: fx.Node) -> str:
        """The author's name of a whole statement's value; a part that stands apart is called after its operation."""
        roles = roles_of(node)
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and node in unpacked(source):
            return roles[unpacked(source).index(node)] if len(roles) > 1 else f"{roles[0]}_part"
        return roles[0] if len(roles) == 1 and self.is_whole(node) else operation_word(node)

    def is_whole(self, node: fx.Node) -> bool:
        """Whether `node` is the value of its statement: no user belongs to the same one."""
        return all(statement_of(user) != statement_of(node) for user in node.users)

    def is_used_after(self, node: fx.Node, here: fx.Node) -> bool:
        """Whether a statement after that of `here` uses `node`."""
        return any(self.places[user] > self.places[here] for user in self.uses(node))

    def uses(self, node: fx.Node) -> Iterator[fx.Node]:
        """Where the text of `node` ends up: its users, and the users of those that are folded."""
        for user in node.users:
            yield user
            if user in self.waiting:
                yield from self.uses(user)


def unpacked(node: fx.Node) -> tuple[fx.Node, ...]:
    """Results of an operation that its statement unpacks into several names, in order; empty when it does not."""
    users = list(node.users)
    names = roles_of(node)
    items = {user.args[1]: user for user in users if _is_item(user, node)}
    if len(names) < 2 or len(items) != len(users) or sorted(map(str, items)) != sorted(map(str, range(len(names)))):
        return ()
    return tuple(items[number] for number in range(len(names)))


def _is_item(user: fx.Node, node: fx.Node) -> bool:
    is_item = user.op == "call_function" and getattr(user.target, "__name__", "") == "getitem"
    return is_item and statement_of(user) == statement_of(node) and isinstance(user.args[1], int)


def mentions(node: fx.Node) -> int:
    """How often the inputs of other nodes mention `node`."""
    found: list[fx.Node] = []
    for user in node.users:
        fx.node.map_arg((user.args, user.kwargs), found.append)
    return found.count(node)


def statement_of(node: fx.Node) -> int | None:
    """Line of the author's statement."""
    found: int | None = node.meta.get("statement")
    return found


def roles_of(node: fx.Node) -> tuple[str, ...]:
    """Names that the author's statement assigns."""
    return tuple(node.meta.get("roles", ()))


def shape_of(node: fx.Node) -> str:
    """Shape of the value as `[B, Q, 2560]`; empty before shapes are known, and for values that have none."""
    dims = node.meta.get("dims")
    if not isinstance(dims, tuple) or any(isinstance(dim, tuple) for dim in dims):
        return ""
    return f"[{', '.join(str(dim) for dim in dims)}]"


def operation_word(node: fx.Node) -> str:
    """A name for a value without one: what computed it."""
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "value")
    return target.rpartition(".")[2].strip("_") or "value"
