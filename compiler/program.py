"""The traced program of a layout: one unit for each class that is emitted, and the stack that uses them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import fx, nn

from draftc.compiler.build import Facts, Part, build, decoding_form
from draftc.compiler.costs import LayerCost
from draftc.compiler.describe import describe_attention, describe_form, describe_layer, describe_mlp
from draftc.compiler.latent_form import FormChoice
from draftc.compiler.trace import Source, Traced, trace
from draftc.runtime.request import Choice, Op, Phase
from draftc.spec.layout import AttentionSpec, Family, Kda, Layout

UnitKind = Literal["attention", "mlp", "layer"]
Device = Literal["cpu", "cuda"]
PHASES: tuple[Phase, ...] = ("training", "decoding")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PLAIN: Mapping[Op, str] = {"attend": "eager", "kda": "kda_recurrent"}
KINDS: tuple[UnitKind, ...] = ("attention", "mlp", "layer")
# Names that a bundle imports or links in, and that a class of a layout's making could take.
TAKEN = frozenset(
    {
        *("CacheLayer", "ConvolvedDecoderLayer", "DecoderLayer", "DummyLayer", "DynamicLayer"),
        *("DynamicSlidingWindowLayer", "GradientCheckpointingLayer", "LinearAttentionLayer", "StatelessLayer"),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One class of the bundle.

    `module` is its reference form on meta and `graph` what its forward does; passes rewrite the graph in place.
    `inputs` are the parameters that the emitted forward keeps (attention and feed-forward classes drop those that no
    node reads), `parts` names the unit of each child that is one, `layers` the layers that use the class. `spec` is the
    attention's spec, on an attention or layer unit; `facts` are the class attributes of a layer unit. `form_of` names
    the attention whose parameters a decoding form has: it is printed as a class derived from that one.
    """

    name: str
    kind: UnitKind
    doc: str
    module: nn.Module
    graph: fx.Graph
    source: Source
    inputs: tuple[str, ...]
    layers: tuple[int, ...]
    spec: AttentionSpec | None = None
    facts: Facts | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    form_of: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile: `opt` 0 (plain), 1 (keeps the numbers) or 2 (may reorder sums); `disable` names passes to skip.

    `backend` overrides the choice for every layer whose operation it implements; `capability` is that of the CUDA
    device, None for any card; `packages` maps packages to their versions, None for a plain install (`passes.select`).
    """

    opt: int = 1
    disable: tuple[str, ...] = ()
    backend: str | None = None
    capability: tuple[int, int] | None = None
    packages: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A layout as traced units. `stack` names the layer unit of every layer, `facts` are the layers' facts in order.

    Pass select fills `choices` by layer, phase and device, and `forms` by layer and device for attentions that have a
    decoding form; pass cost fills `costs` by layer.
    """

    layout: Layout
    units: tuple[Unit, ...]
    stack: tuple[str, ...]
    facts: tuple[Facts, ...]
    options: Options = field(default_factory=Options)
    choices: dict[tuple[int, Phase, Device], Choice] = field(default_factory=dict)
    forms: dict[tuple[int, Device], FormChoice] = field(default_factory=dict)
    costs: dict[int, LayerCost] = field(default_factory=dict)

    def unit(self, name: str) -> Unit:
        """Return the unit called `name`; KeyError when there is none."""
        return {unit.name: unit for unit in self.units}[name]

    def attention(self, layer: int) -> Unit:
        """Return the attention unit of layer `layer`."""
        return self.unit(self.unit(self.stack[layer]).parts["self_attn"])

    def form(self, attention: str) -> Unit | None:
        """Return the decoding form of the attention unit `attention`, None when it has none."""
        return next((unit for unit in self.units if unit.form_of == attention), None)

    def decoding_forms(self, device: Device) -> dict[str, str]:
        """The attention units that decode in another form on `device`, with the unit of that form."""
        found = {}
        for (layer, place), choice in self.forms.items():
            attention = self.attention(layer).name
            unit = self.form(attention)
            if place == device and choice.form == "absorbed" and unit is not None:
                found[attention] = unit.name
        return found

    def decoding_cost(self, layer: int, device: Device) -> LayerCost:
        """The cost of a layer in the form in which it decodes on `device`."""
        cost, choice = self.costs[layer], self.forms.get((layer, device))
        is_absorbed = choice is not None and choice.form == "absorbed"
        return cost.absorbed if is_absorbed and cost.absorbed is not None else cost

    @property
    def emitted(self) -> tuple[Unit, ...]:
        """The units that a bundle holds: decoding forms only where some device takes them."""
        taken = {form for device in DEVICES for form in self.decoding_forms(device).values()}
        return tuple(unit for unit in self.units if unit.form_of is None or unit.name in taken)

    @property
    def table(self) -> dict[tuple[Phase, Device], tuple[str, ...]]:
        """The backend of every layer, by phase and device; the plain one where pass select chose nothing."""
        return {
            (phase, device): tuple(self.backend(layer, phase, device) for layer in range(len(self.stack)))
            for phase in PHASES
            for device in DEVICES
        }

    def backend(self, layer: int, phase: Phase, device: Device) -> str:
        """The backend of one layer in one phase on one device."""
        choice = self.choices.get((layer, phase, device))
        return choice.backend if choice else PLAIN[operation_of(self.layout.layers[layer].attention)]

    @property
    def operations(self) -> Counter[str]:
        """How often each operation occurs in the graphs of the units, each unit counted once."""
        return Counter(operation(unit, node) for unit in self.units for node in unit.graph.nodes if is_operation(node))


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did: `changed` graphs or not, operations before and after, and what it has to say."""

    name: str
    changed: bool = False
    notes: tuple[str, ...] = ()
    number: int = 0
    seconds: float = 0.0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)


def operation_of(spec: AttentionSpec) -> Op:
    """The operation that backends implement for this attention."""
    return "kda" if isinstance(spec, Kda) else "attend"


def is_operation(node: fx.Node) -> bool:
    """Whether the node computes something: inputs, outputs and parameters do not."""
    return node.op not in ("placeholder", "output", "get_attr")


def operation(unit: Unit, node: fx.Node) -> str:
    """The word for what `node` does: `linear`, `attend`, `transpose`, or the class of the part that it calls."""
    if node.op == "call_module":
        target = str(node.target)
        return unit.parts.get(target) or type(unit.module.get_submodule(target)).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def assemble(layout: Layout, options: Options | None = None) -> Program:
    """Build, trace and share the layers of `layout`.

    Modules of equal classes, constants and parameter shapes have equal bodies: they share one unit, under the name of
    the first attention of the stack that needs it (attentions must also turn as many channels). Layer units differ in
    their facts as well, so that `near`, which only adds a window to `context`, gets `NearLayer` but uses
    `ContextAttention`.
    Raises `UntraceableError`.
    """
    parts = build(layout)
    sharing = _Sharing(layout.family)
    stack = tuple(sharing.layer(part) for part in parts)
    return Program(layout, sharing.units(), stack, tuple(part.facts for part in parts), options or Options())


def class_name(attention: str) -> str:
    """The Python word for the attention `a_b` of a layout: `AB`."""
    return "".join(word.capitalize() for word in attention.split("_"))


def signature(module: nn.Module) -> tuple[object, ...]:
    """What decides the body of `module`: its class, constants, parameter shapes, and the same of its children."""
    own = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}
    constants = tuple(sorted((key, repr(value)) for key, value in own.items()))
    tensors = tuple((name, tuple(value.shape), value.dtype) for name, value in module.named_parameters(recurse=False))
    children = tuple((name, signature(child)) for name, child in module.named_children())
    return (type(module), constants, tensors, children)


def _prune(graph: fx.Graph) -> tuple[str, ...]:
    """Drop the inputs that no node reads; return the names of the others."""
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
    return tuple(str(node.target) for node in graph.find_nodes(op="placeholder"))


def _narrow_calls(graph: fx.Graph, parts: Mapping[str, Unit]) -> None:
    """Pass to each part only the inputs that it kept."""
    for node in graph.nodes:
        if node.op == "call_module" and node.target in parts:
            unit = parts[node.target]
            named = dict(zip(unit.source.parameters, node.args, strict=False)) | node.kwargs
            node.args = tuple(named[name] for name in unit.inputs)
            node.kwargs = {}


class _Sharing:
    """Traces each distinct module once and remembers which layers use it."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._units: dict[tuple[object, ...], Unit] = {}
        self._uses: dict[str, list[int]] = {}

    def units(self) -> tuple[Unit, ...]:
        """Return the units found so far: attentions, feed-forward parts, layers, each in order of first use."""
        found = [replace(unit, layers=tuple(self._uses[unit.name])) for unit in self._units.values()]
        return tuple(sorted(found, key=lambda unit: KINDS.index(unit.kind)))

    def layer(self, part: Part) -> str:
        """Return the name of the class of this layer, tracing what is new."""
        parts = {"self_attn": self._attention(part), "mlp": self._mlp(part)}
        key = ("layer", signature(part.module), part.facts)
        unit = self._units.get(key) or self._add(key, self._layer(part, parts))
        names = {used.name for used in (unit, *parts.values())}
        for used in self._units.values():
            if used.name in names or used.form_of in names:
                self._uses.setdefault(used.name, []).append(part.spec.index)
        return unit.name

    def _layer(self, part: Part, parts: Mapping[str, Unit]) -> Unit:
        traced = trace(part.module, _path(part))
        _narrow_calls(traced.graph, parts)
        named = {attribute: unit.name for attribute, unit in parts.items()}
        name, doc = f"{class_name(part.spec.name)}Layer", describe_layer(part.spec, self._family)
        unit = self._unit(name, "layer", doc, part.module, traced)
        return replace(unit, spec=part.spec.attention, facts=part.facts, parts=named)

    def _attention(self, part: Part) -> Unit:
        module = part.module.get_submodule("self_attn")
        key = ("attention", signature(module), part.facts.turn and part.facts.turn.dim)
        if key not in self._units:
            name, doc = f"{class_name(part.spec.name)}Attention", describe_attention(part.spec.attention)
            unit = self._unit(name, "attention", doc, module, trace(module, f"{_path(part)}.self_attn"), prune=True)
            self._add(key, replace(unit, spec=part.spec.attention))
            self._decoding_form(part, key)
        return self._units[key]

    def _decoding_form(self, part: Part, key: tuple[object, ...]) -> None:
        """Trace the form in which this attention may decode, where it has one."""
        module = decoding_form(part.module.get_submodule("self_attn"))
        if module is None:
            return
        plain = self._units[key]
        name, doc = f"{class_name(part.spec.name)}AbsorbedAttention", describe_form(plain.name)
        traced = trace(module, f"{_path(part)}.self_attn, decoding form")
        unit = self._unit(name, "attention", doc, module, traced, prune=True)
        self._add(("form", *key), replace(unit, spec=part.spec.attention, form_of=plain.name))

    def _mlp(self, part: Part) -> Unit:
        module = part.module.get_submodule("mlp")
        key = ("mlp", signature(module))
        if key not in self._units:
            traced = trace(module, f"{_path(part)}.mlp")
            self._add(key, self._unit("GatedMLP", "mlp", describe_mlp(part.spec.mlp), module, traced, prune=True))
        return self._units[key]

    def _unit(
        self, name: str, kind: UnitKind, doc: str, module: nn.Module, traced: Traced, prune: bool = False
    ) -> Unit:
        inputs = _prune(traced.graph) if prune else traced.source.parameters
        return Unit(self._free(name), kind, doc, module, traced.graph, traced.source, inputs, ())

    def _free(self, name: str) -> str:
        """Return `name`, or with the word Draft before it when a bundle already has that name."""
        names = {unit.name for unit in self._units.values()} | TAKEN
        return self._free(f"Draft{name}") if name in names else name

    def _add(self, key: tuple[object, ...], unit: Unit) -> Unit:
        return self._units.setdefault(key, unit)


def _path(part: Part) -> str:
    return f"layers.{part.spec.index}"
