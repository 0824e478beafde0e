"""Graphs of a program as lines of text, and what each pass changes in them."""

from collections.abc import Iterator
from difflib import unified_diff

from torch import fx

from draftc.compiler.passes.driver import run_each
from draftc.compiler.program import Options, Program, Unit, assemble, operation
from draftc.spec.layout import Layout

AROUND = 1  # unchanged lines that are shown before and after a change


def graph_lines(program: Program) -> Iterator[str]:
    """Yield each class as its graph: a line a node with its name, operation, operands, sizes and dtype."""
    for unit in program.emitted:
        yield f"{unit.name} ({unit.kind}, layers {', '.join(map(str, unit.layers))})"
        for node in unit.graph.nodes:
            yield f"  {node_line(unit, node)}"


def node_line(unit: Unit, node: fx.Node) -> str:
    """Say what `node` is and what passes know of it."""
    roles = ", ".join(node.meta.get("roles", ()))
    facts = " ".join(fact for fact in (_sizes(node), _dtypes(node)) if fact)
    return bare_line(unit, node) + (f"  # {roles or node.name}: {facts}" if facts else "")


def bare_line(unit: Unit, node: fx.Node) -> str:
    """Say what `node` is: its name, operation and operands."""
    if node.op == "get_attr":
        return f"{node.name} = {node.target}"
    operands = ", ".join(str(argument) for argument in node.all_input_nodes)
    what = node.op if node.op in ("placeholder", "output") else operation(unit, node)
    return f"{node.name} = {what}({operands})"


def graph_changes(layout: Layout, options: Options) -> Iterator[str]:
    """Compile `layout` once more and yield, for each pass that rewrites a graph, lines taken away and put in."""
    program = assemble(layout, options)
    before = _bare(program)
    for report in run_each(program):
        after = _bare(program)
        for name, lines in after.items():
            changes = list(unified_diff(before[name], lines, n=AROUND, lineterm=""))[2:]
            if changes:
                yield f"{report.number} {report.name} in {name}:"
                yield from changes
        before = after


def _bare(program: Program) -> dict[str, list[str]]:
    return {unit.name: [bare_line(unit, node) for node in unit.graph.nodes] for unit in program.units}


def _sizes(node: fx.Node) -> str:
    dims = node.meta.get("dims")
    return str(_shapes(dims)).replace("'", "") if isinstance(dims, tuple) else ""


def _shapes(dims: object) -> object:
    """Turn nested tuples of sizes into nested lists of text, as the comments of a bundle show them."""
    return [_shapes(dim) for dim in dims] if isinstance(dims, tuple) else str(dims)


def _dtypes(node: fx.Node) -> str:
    found = node.meta.get("dtype")
    return ", ".join(map(str, found)) if isinstance(found, tuple) else str(found or "")
