"""Pass fuse: projections of the same rows become one product, joined at the point of use."""

import operator
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import Argument

from draftc.compiler.errors import InternalError
from draftc.compiler.passes.annotate import Annotate
from draftc.compiler.program import PassReport, Program, Unit

MOST = 3


class Fuse:
    """Join linear layers that read the same value.

    Algebra: x W_1^T and x W_2^T are the columns of x [W_1; W_2]^T, so

        k = k_proj(x); v = v_proj(x)   ->   k, v = F.linear(x, cat([k_proj.weight, v_proj.weight])).split((k, v), -1)

    and likewise for biases. Every output is the same sum of the same products; a matrix product of another width may
    add them in another order, so results agree to rounding. Weights stay where they are, in the module tree and in
    checkpoints: each forward joins copies, which costs one copy of the joined weights.
    At most three are joined at a time, so that a join stays a line of the emitted class.
    Requires: annotate. Ensures: of the linear layers that read the same value, all with or all without a bias, at most
    the last is left alone; all nodes are annotated.
    """

    name = "fuse"
    level = 2
    requires = ("annotate",)

    def run(self, program: Program) -> PassReport:
        """Join in every unit."""
        notes = [f"{unit.name}: {', '.join(names)}" for unit in program.units for names in _fuse(unit)]
        Annotate().run(program)
        return PassReport(self.name, notes=tuple(notes))


def _fuse(unit: Unit) -> list[list[str]]:
    """Rewrite one unit; return the names of the layers of each join."""
    found = [group[start : start + MOST] for group in _groups(unit) for start in range(0, len(group), MOST)]
    groups = [group for group in found if len(group) > 1]
    for group in groups:
        _join(unit, group)
    return [[str(node.target) for node in group] for group in groups]


def _groups(unit: Unit) -> Iterable[list[fx.Node]]:
    """Calls of linear layers by the value that they read and by whether they have a bias."""
    found: dict[tuple[fx.Node, bool], list[fx.Node]] = {}
    for node in unit.graph.nodes:
        if node.op == "call_module" and node.target not in unit.parts:
            module = unit.module.get_submodule(node.target)
            if isinstance(module, nn.Linear):
                found.setdefault((node.args[0], module.bias is not None), []).append(node)
    return found.values()


def _join(unit: Unit, group: list[fx.Node]) -> None:
    """Put one product and its split before the first call, and its parts in the place of all calls."""
    known = set(unit.graph.nodes)
    names = [str(node.target) for node in group]
    with unit.graph.inserting_before(group[0]):
        parts = _product(unit, names, group[0].args[0])
    _state(unit, [node for node in unit.graph.nodes if node not in known], names)
    for node, part in zip(group, parts, strict=True):
        node.replace_all_uses_with(part)
        unit.graph.erase_node(node)


def _product(unit: Unit, names: list[str], rows: Argument) -> list[fx.Node]:
    """Add the joined product of the layers `names` with `rows`; return its parts."""
    graph = unit.graph
    layers = [_linear(unit, name) for name in names]
    parameters = ["weight"] if layers[0].bias is None else ["weight", "bias"]
    joined = [graph.call_function(torch.cat, (_all(graph, names, parameter),)) for parameter in parameters]
    product = graph.call_function(F.linear, (rows, *joined))
    widths: tuple[int, ...] = tuple(layer.out_features for layer in layers)
    split = graph.call_method("split", (product, widths), {"dim": -1})
    return [graph.call_function(operator.getitem, (split, index)) for index in range(len(names))]


def _linear(unit: Unit, name: str) -> nn.Linear:
    found: nn.Module = unit.module.get_submodule(name)
    if not isinstance(found, nn.Linear):
        raise InternalError(f"{name} of {unit.name} is no linear layer")
    return found


def _all(graph: fx.Graph, names: list[str], parameter: str) -> list[fx.Node]:
    return [graph.get_attr(f"{name}.{parameter}") for name in names]


def _state(unit: Unit, nodes: list[fx.Node], names: list[str]) -> None:
    """Make two statements of the new nodes: `joined = F.linear(...)`, and the split that names the parts.

    Statements of the author are lines of a file; ours count down from -1.
    """
    taken: list[int] = [node.meta.get("statement", 0) for node in unit.graph.nodes]
    lowest = min(0, *taken)
    first = next(number for number, node in enumerate(nodes) if node.target == "split")
    for node in nodes[:first]:
        node.meta.update(statement=lowest - 1, roles=("joined",))
    for node in nodes[first:]:
        node.meta.update(statement=lowest - 2, roles=tuple(name.removesuffix("_proj") for name in names))
