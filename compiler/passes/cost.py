"""Pass cost: floating-point operations, bytes, cache and parameters, as polynomials."""

from typing import Any, assert_never

from torch import fx, nn

from draftc.compiler.costs import ITEM_BYTES, NOTHING, CacheCost, Cost, LayerCost
from draftc.compiler.dims import Dim, as_dim, product, symbols, total
from draftc.compiler.families import family_form
from draftc.compiler.program import PassReport, Program, Unit, is_operation
from draftc.spec.layout import AttentionSpec, Gqa, Kda, Layout, Mla

# What only renames or rearranges indices moves nothing until it is read.
VIEWS = frozenset(
    {
        *("chunk", "expand", "flatten", "fold_blocks", "getattr", "getitem", "permute", "reshape", "split", "squeeze"),
        *("transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as"),
    }
)
# The memory protocol: stock caches append in place; what they hold is counted as cache.
MEMORY = frozenset({"update", "recall", "commit"})
ATTENTIONS = frozenset({"attend", "kda", "kda_states"})
NORM_FLOPS = 4  # square, add, scale, weigh
STEP_FLOPS = 7  # of the delta rule on one d x d state: decay 1, read 2, write 2, query 2
WRITE_FLOPS = 5  # the same without the query
TAP_FLOPS = 3  # of a dynamic convolution: change the kernel, multiply, add


class CostPass:
    """Price every node and every layer; change nothing.

    Algebra: a product [m, k] x [k, n] takes 2 m k n operations; attention takes 2 (d + d_v) for each pair of a query
    and a key that it may see, all context rows and the slots of its own block; one row of the delta rule takes 7 d^2 a
    head and 5 d^2 where only the state is asked for; other operations take one for each element. Context rows behind an
    anchor and later slots of a causal block are counted although they are masked.
    Requires: annotate. Ensures: `cost` on every node that computes; `program.costs` for every layer.
    """

    name = "cost"
    level = 0
    requires = ("annotate",)

    def run(self, program: Program) -> PassReport:
        """Price all units, parts before the layers that call them, then all layers."""
        totals: dict[str, Cost] = {}
        for unit in program.units:
            for node in filter(is_operation, unit.graph.nodes):
                node.meta["cost"] = _node_cost(program.layout, unit, node, totals)
            totals[unit.name] = _sum(unit, ATTENTIONS, False) + _sum(unit, ATTENTIONS, True)
        for layer, name in enumerate(program.stack):
            program.costs[layer] = _layer_cost(program, layer, totals[name], totals)
        parameters = sum(cost.parameters for cost in program.costs.values())
        return PassReport(self.name, notes=(f"{parameters} parameters in {len(program.stack)} layers",))


def outer_cost(layout: Layout) -> Cost:
    """What a forward does outside its layers: project the taps and, where widths differ, the embeddings and outputs."""
    letters = symbols(layout.block_size)
    width, target = layout.hidden_size, layout.target.hidden_size
    found = _product_cost(letters.B * letters.C, layout.context_width, width, layout.dtype)
    if width != target:
        found += _product_cost(letters.B * letters.Q, target, width, layout.dtype)
        found += NOTHING if layout.owns_head else _product_cost(letters.B * letters.Q, width, target, layout.dtype)
    return found


def head_cost(layout: Layout) -> Cost:
    """What the family's heads and the draft's own output head do for every token that a block predicts.

    Forward does not run them; an output head of the target is not counted.
    """
    letters, form = symbols(layout.block_size), family_form(layout)
    rows = letters.B * letters.N * form.slots.steps
    own = ((layout.hidden_size, layout.draft_vocab_size),) if layout.owns_head else ()
    found = NOTHING
    for width, out in (*own, *form.products):
        found += _product_cost(rows, width, out, layout.dtype)
    return found


def _product_cost(rows: Dim, width: int, out: int, dtype: str) -> Cost:
    moved = rows * width + rows * out + width * out
    return Cost(rows * (2 * width * out), moved * ITEM_BYTES[dtype])


def _layer_cost(program: Program, layer: int, whole: Cost, totals: dict[str, Cost]) -> LayerCost:
    spec, unit = program.layout.layers[layer].attention, program.attention(layer)
    around, form = whole - totals[unit.name], program.form(unit.name)
    parameters = sum(p.numel() for p in program.unit(program.stack[layer]).module.parameters())
    kept = cache_cost(spec, program.layout)

    def cost_of(inner: Unit, absorbed: LayerCost | None) -> LayerCost:
        attention = _sum(inner, ATTENTIONS, True)
        dense = around + (totals[inner.name] - attention)
        return LayerCost(parameters, dense, attention, kept, spec.sliding_window, absorbed)

    return cost_of(unit, None if form is None else cost_of(form, None))


def cache_cost(spec: AttentionSpec, layout: Layout) -> CacheCost:
    """Return what a layer with this attention keeps between decoding steps; states are float32, rows as activations."""
    item = ITEM_BYTES[layout.dtype]
    kept = spec.sliding_window - 1 if spec.sliding_window else None
    match spec:
        case Gqa():
            return CacheCost(2 * spec.num_key_value_heads * spec.head_dim * item, 0, kept)
        case Mla():
            return CacheCost((spec.kv_lora_rank + spec.qk_rope_head_dim) * item, 0, kept)
        case Kda(context_state="scan"):
            state = spec.num_heads * spec.head_dim**2 * ITEM_BYTES["float32"]
            tail = (spec.short_conv_kernel_size - 1) * layout.hidden_size * item
            return CacheCost(0, state + tail, None)
        case Kda():
            return CacheCost(0, 0, None)
        case _:
            assert_never(spec)


def _sum(unit: Unit, names: frozenset[str], inside: bool) -> Cost:
    """The costs of the operations of `unit` whose names are, or are not, among `names`."""
    found = NOTHING
    for node in unit.graph.nodes:
        if "cost" in node.meta and (_name(node) in names) is inside:
            found += node.meta["cost"]
    return found


def _node_cost(layout: Layout, unit: Unit, node: fx.Node, totals: dict[str, Cost]) -> Cost:
    name = _name(node)
    if node.op == "call_module":
        target = str(node.target)
        return totals[unit.parts[target]] if target in unit.parts else _module_cost(unit, node)
    if name in VIEWS or name in MEMORY or node.meta["dims"] is None:
        return NOTHING
    if name in ATTENTIONS:
        return Cost(_attention_flops(layout, node), _moved(node))
    if name in ("linear", "matmul"):
        return Cost(2 * _elements(node) * _dims(node.args[0])[-1], _moved(node))
    if name == "convolve_blocks":
        return Cost(_elements(node) * _dims(node.args[1])[0] * TAP_FLOPS, _moved(node))
    flops = as_dim(0) if name == "cat" else _elements(node)
    return Cost(flops, _moved(node))


def _module_cost(unit: Unit, node: fx.Node) -> Cost:
    called = unit.module.get_submodule(str(node.target))
    # Base kernels of a dynamic convolution are operands of the convolution, not of what changes them.
    module = getattr(called, "kernel_projection", called)
    weights = sum(p.numel() for p in module.parameters())
    moved = _moved(node) + weights * ITEM_BYTES[_tensors(node)[0][1]]
    if isinstance(module, nn.Linear):
        return Cost(2 * _elements(node) * module.in_features, moved)
    shape = module.get_parameter("weight").shape
    return Cost(_elements(node) * (NORM_FLOPS if len(shape) == 1 else 2 * shape[-1]), moved)


def _attention_flops(layout: Layout, node: fx.Node) -> Dim:
    if _name(node) == "attend":
        (batch, heads, queries, width), keys, values = (_dims(arg) for arg in node.args[:3])
        seen = keys[2] - queries + layout.block_size
        return 2 * batch * heads * queries * seen * (width + values[-1])
    steps = STEP_FLOPS if _name(node) == "kda" else WRITE_FLOPS
    shape = _dims(node.args[0])
    return product(shape) * shape[-1] * steps


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _dims(node: Any) -> tuple[Dim, ...]:
    found: tuple[Dim, ...] = node.meta["dims"]
    return found


def _elements(node: fx.Node) -> Dim:
    return total(product(shape) for shape, _ in _tensors(node))


def _moved(node: fx.Node) -> Dim:
    """Bytes of the operands that are tensors, and of the result."""
    return total(_size(value) for value in (*node.all_input_nodes, node))


def _size(node: fx.Node) -> Dim:
    return total(product(shape) * ITEM_BYTES[dtype] for shape, dtype in _tensors(node))


def _tensors(node: fx.Node) -> list[tuple[tuple[Dim, ...], str]]:
    """Shape and dtype of each tensor that the node stands for: one, several, or none."""
    dims, dtype = node.meta["dims"], node.meta["dtype"]
    if dims is None:
        return []
    return list(zip(dims, dtype, strict=True)) if isinstance(dtype, tuple) else [(dims, dtype)]
