"""Pass annotate: sizes, dtypes, and where every attention comes from."""

from draftc.compiler.build import Facts
from draftc.compiler.dims import Symbols, as_dim, symbols
from draftc.compiler.errors import ShapeError
from draftc.compiler.program import PassReport, Program, Unit
from draftc.compiler.shapes.infer import Inference, Note, write
from draftc.compiler.shapes.values import Opaque, TensorValue, Value
from draftc.spec.layout import Layout


class Annotate:
    """Give every node its sizes over B, N, C and P, and its dtype.

    Algebra: a layer maps block [B, Q, H] and context [B, C, H] to [B, Q, H] with Q = block_size * N; every operation
    has one rule from the shapes of its operands to that of its result, so all sizes follow from those of the inputs.
    Requires: nothing. Ensures: `dims` and `dtype` on every node; `spec` and `origin` on every attention operation.
    Raises `ShapeError` where operands do not fit.
    """

    name = "annotate"
    level = 0
    requires = ()

    def run(self, program: Program) -> PassReport:
        """Annotate all units, each layer unit with the parts that it calls."""
        infer_layers(program, write)
        for unit in program.units:
            _mark_attention(program.layout, unit)
        count = sum(len(unit.graph.nodes) for unit in program.units)
        return PassReport(self.name, notes=(f"{count} values of {len(program.units)} classes",))


def infer_layers(program: Program, note: Note) -> None:
    """Walk every layer unit and its parts, telling `note` each node's value.

    Raises `ShapeError` where operands do not fit, or where a layer does not return the shape that it got.
    """
    letters = symbols(program.layout.block_size)
    inference = Inference(program.layout.dtype, program.unit, note, program.form)
    for unit in program.units:
        if unit.kind == "layer":
            inputs = layer_inputs(program.layout, unit.facts, letters)
            result = inference.unit(unit, inputs)
            if result != inputs[0]:
                raise ShapeError(f"{unit.name} returns {result}, and a layer returns what it got: {inputs[0]}")


def layer_inputs(layout: Layout, facts: Facts | None, letters: Symbols) -> tuple[Value, ...]:
    """The six inputs of a layer: block, context, anchors, rope, view, memory."""
    width, dtype = as_dim(layout.hidden_size), layout.dtype
    block = TensorValue((letters.B, letters.Q, width), dtype)
    context = TensorValue((letters.B, letters.C, width), dtype)
    anchors = TensorValue((letters.B, letters.N), "int64")
    turned = facts.turn.dim if facts is not None and facts.turn is not None else 0
    table = TensorValue((letters.B, letters.C + letters.Q, as_dim(turned)), "float32")
    past = letters.P if facts is not None and facts.memory == "keys" else as_dim(0)
    return block, context, anchors, (table, table), Opaque("view", as_dim(0)), Opaque("memory", past)


ATTENTIONS = ("attend", "kda", "kda_states")


def _mark_attention(layout: Layout, unit: Unit) -> None:
    """Note on each attention operation what the layout says of it, and where."""
    for node in unit.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") in ATTENTIONS:
            name = layout.layers[unit.layers[0]].name
            node.meta.update(spec=unit.spec, origin=layout.origins.get(f"/attentions/{name}"))
