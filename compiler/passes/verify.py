"""Pass verify: a program is what emission takes it for."""

from torch import fx

from draftc.compiler.errors import InternalError
from draftc.compiler.passes.annotate import infer_layers
from draftc.compiler.program import PassReport, Program, Unit, is_operation
from draftc.compiler.shapes.values import Value, dims_of, dtypes_of

KEYS = frozenset({"statement", "roles", "dims", "dtype", "spec", "origin", "cost"})


class Verify:
    """Check every unit; change nothing.

    Algebra: none. Requires: nothing. Ensures: graphs are in order and hold no value that nobody uses; targets exist;
    units and their callers agree on inputs; every operation knows its statement; nodes carry no other facts than the
    agreed ones; sizes and dtypes, once annotated, are those that the rules give for the graph as it is now.
    Raises `InternalError`: a program that fails here is a fault of draftc.
    """

    name = "verify"
    level = 0
    requires = ()

    def run(self, program: Program) -> PassReport:
        """Verify all units."""
        verify(program, after="trace")
        return PassReport(self.name)


def verify(program: Program, after: str) -> None:
    """Raise `InternalError` for the first thing that is wrong with `program`, naming the step after which it is."""
    for unit in program.units:
        for reason in _broken(program, unit):
            raise InternalError(f"after {after}, {unit.name} is broken: {reason}", help="report this layout")
    infer_layers(program, _agree)


def _broken(program: Program, unit: Unit) -> list[str]:
    reasons = _broken_order(unit) + _broken_inputs(unit) + _broken_form(program, unit)
    for node in unit.graph.nodes:
        reasons += _broken_node(program, unit, node)
    return reasons


def _broken_order(unit: Unit) -> list[str]:
    try:
        unit.graph.lint()
    except RuntimeError as error:
        return [str(error)]
    return []


def _broken_inputs(unit: Unit) -> list[str]:
    given = tuple(str(node.target) for node in unit.graph.find_nodes(op="placeholder"))
    return [] if given == unit.inputs else [f"its graph takes {given}, it says {unit.inputs}"]


def _broken_form(program: Program, unit: Unit) -> list[str]:
    """A decoding form is called in the place of its attention and has its parameters."""
    if unit.form_of is None:
        return []
    plain = program.unit(unit.form_of)
    reasons = [] if unit.inputs == plain.inputs else [f"it takes {unit.inputs}, {plain.name} takes {plain.inputs}"]
    own, other = (dict(each.module.named_parameters()).keys() for each in (unit, plain))
    return reasons if own == other else [*reasons, f"its parameters are not those of {plain.name}"]


def _broken_node(program: Program, unit: Unit, node: fx.Node) -> list[str]:
    reasons = []
    if strange := set(node.meta) - KEYS:
        reasons.append(f"{node.name} carries {', '.join(sorted(strange))}")
    if is_operation(node) and not ("statement" in node.meta and "roles" in node.meta):
        reasons.append(f"{node.name} belongs to no statement")
    if is_operation(node) and not node.users and not _is_result(node):
        reasons.append(f"nobody uses {node.name}")
    if node.op == "call_module" and str(node.target) in unit.parts:
        inputs = program.unit(unit.parts[str(node.target)]).inputs
        if len(node.args) != len(inputs):
            reasons.append(f"{node.name} gets {len(node.args)} inputs for {inputs}")
    return reasons + _broken_target(unit, node)


def _is_result(node: fx.Node) -> bool:
    """Whether the node is one of several results; of these some may be unused."""
    return getattr(node.target, "__name__", "") == "getitem"


def _broken_target(unit: Unit, node: fx.Node) -> list[str]:
    target = str(node.target)
    owner, _, last = target.rpartition(".")
    try:
        if node.op == "call_module":
            unit.module.get_submodule(target)
        elif node.op == "get_attr":
            getattr(unit.module.get_submodule(owner), last)
    except AttributeError:
        return [f"it has no {target}"]
    return []


def _agree(unit: Unit, node: fx.Node, value: Value) -> None:
    """Raise `InternalError` when the notes on a node are not those of its value."""
    noted = (node.meta.get("dims", dims_of(value)), node.meta.get("dtype", dtypes_of(value)))
    if noted != (dims_of(value), dtypes_of(value)):
        raise InternalError(f"{node.name} of {unit.name} is noted as {noted[0]} and is {dims_of(value)}")
