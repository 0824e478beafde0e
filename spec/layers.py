"""The stack written out: names, in-place attentions and `repeat` become one list of layers."""

from collections.abc import Set as SetOf
from dataclasses import dataclass

from draftc.spec.diagnostic import Diagnostic, Label
from draftc.spec.finding import is_whole
from draftc.spec.nodes import Mapping, Node, Pointer, Scalar, Sequence
from draftc.spec.resolution_codes import LAYER_NAME_TAKEN, TOO_MANY_LAYERS, UNKNOWN_ATTENTION
from draftc.spec.span import Span
from draftc.spec.suggest import did_you_mean

LIMIT = 256


@dataclass(frozen=True, slots=True)
class Written:
    """An attention as it is written: under its name in `attentions`, or in place in a layer."""

    name: str
    pointer: Pointer
    node: Mapping
    place: Span
    layer: int | None = None

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"attentions.{self.name}" if self.layer is None else f"layer {self.layer}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the expanded stack: where it is written, and the name of its attention when that is known."""

    pointer: Pointer
    span: Span
    name: str | None


@dataclass(frozen=True, slots=True)
class Stack:
    """The expanded list of layers. `depth` is None when the list is too broken to count."""

    layers: tuple[Layer, ...] = ()
    depth: int | None = None
    in_place: tuple[Written, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The known attention names in order of first use."""
        return tuple(dict.fromkeys(layer.name for layer in self.layers if layer.name is not None))

    @property
    def is_named(self) -> bool:
        """Whether the attention of every layer is known."""
        return bool(self.layers) and all(layer.name is not None for layer in self.layers)


def named_attentions(root: Mapping) -> dict[str, Written]:
    """Return what `attentions` holds, by name, in file order."""
    block = root.get("attentions")
    entries = block.entries if isinstance(block, Mapping) else ()
    return {
        entry.name: Written(entry.name, ("attentions", entry.name), entry.value, entry.key.span)
        for entry in entries
        if isinstance(entry.value, Mapping)
    }


def expand_layers(root: Mapping, broken: SetOf[Pointer]) -> Stack:
    """Write out `layers`: each entry in turn, `repeat` as often as it says; copies share the in-place attention.

    Reports DC120 for a name that `attentions` lacks, DC127 for an in-place attention whose name is taken and DC128 for
    more than 256 layers, before anything is written out.
    """
    node = root.get("layers")
    if not isinstance(node, Sequence) or not node.items:
        return Stack()
    runs = [_run(item, ("layers", index), broken) for index, item in enumerate(node.items)]
    if None in runs:
        return Stack()
    whole = [run for run in runs if run is not None]
    depth = sum(run.times * len(run.items) for run in whole)
    if depth > LIMIT:
        return Stack(diagnostics=(_too_many(root, depth),))
    return _Writer(root, broken).write(whole)


@dataclass(frozen=True, slots=True)
class _Run:
    """Entries without `repeat`, with their places, and how often they are written out."""

    items: tuple[tuple[Pointer, Node], ...]
    times: int = 1


def _run(item: Node, pointer: Pointer, broken: SetOf[Pointer]) -> _Run | None:
    if not isinstance(item, Mapping) or (item.get("repeat") is None and item.get("of") is None):
        return _Run(((pointer, item),))
    times, listed = item.get("repeat"), item.get("of")
    count = times.value if isinstance(times, Scalar) and (*pointer, "repeat") not in broken else None
    if not isinstance(count, int) or not isinstance(listed, Sequence):
        return None
    return _Run(tuple(((*pointer, "of", place), part) for place, part in enumerate(listed.items)), count)


def _too_many(root: Mapping, depth: int) -> Diagnostic:
    entry = root.entry("layers")
    return Diagnostic(
        TOO_MANY_LAYERS,
        f"layers expands to {depth} layers; the limit is {LIMIT}",
        entry.key.span if entry else root.span,
        help="a draft has a few layers; lower `repeat`",
    )


class _Writer:
    """Writes runs out while it collects the attentions written in place and the diagnostics."""

    def __init__(self, root: Mapping, broken: SetOf[Pointer]) -> None:
        block = root.get("attentions")
        self.known = {entry.name: entry.key for entry in block.entries} if isinstance(block, Mapping) else None
        self.broken = broken
        self.in_place: dict[Pointer, Written] = {}
        self.diagnostics: list[Diagnostic] = []
        self.unknown: set[Pointer] = set()

    def write(self, runs: list[_Run]) -> Stack:
        items = [item for run in runs for item in run.items * run.times]
        layers = tuple(self._layer(index, pointer, node) for index, (pointer, node) in enumerate(items))
        return Stack(layers, len(layers), tuple(self.in_place.values()), tuple(self.diagnostics))

    def _layer(self, index: int, pointer: Pointer, node: Node) -> Layer:
        if not isinstance(node, Mapping):
            return Layer(pointer, node.span, self._named(index, pointer, node))
        inner, place = node.get("attention"), (*pointer, "attention")
        if isinstance(inner, Mapping):
            return Layer(pointer, node.span, self._written(index, place, inner))
        return Layer(pointer, node.span, self._named(index, place, inner))

    def _written(self, index: int, pointer: Pointer, node: Mapping) -> str | None:
        """Return the name of the attention in place: that of its first copy, or None when the name is taken."""
        if pointer not in self.in_place:
            self.in_place[pointer] = Written(f"layer{index}", pointer, node, node.span, index)
            self._refuse_taken(self.in_place[pointer])
        name = self.in_place[pointer].name
        return None if name in (self.known or {}) else name

    def _refuse_taken(self, written: Written) -> None:
        taken = (self.known or {}).get(written.name)
        if taken is None:
            return
        self.diagnostics.append(
            Diagnostic(
                LAYER_NAME_TAKEN,
                f"layer {written.layer} writes its attention in place and would be called {written.name}, "
                "a name that attentions already has",
                written.place,
                (Label(taken.span, "the name is taken here"),),
                help="rename the attention, or give the one in place a name",
            )
        )

    def _named(self, index: int, pointer: Pointer, node: Node | None) -> str | None:
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or not is_whole(self.broken, *pointer):
            return None
        if self.known is None or node.value in self.known:
            return node.value
        if pointer not in self.unknown:
            self.unknown.add(pointer)
            self.diagnostics.append(_unknown(index, node.value, node.span, tuple(self.known)))
        return None


def _unknown(index: int, name: str, span: Span, known: tuple[str, ...]) -> Diagnostic:
    return Diagnostic(
        UNKNOWN_ATTENTION,
        f"layer {index} names {name}, which is not in attentions",
        span,
        help=_known(name, known),
    )


def _known(name: str, known: tuple[str, ...]) -> str:
    return " ".join(part for part in (did_you_mean(name, known), f"known: {', '.join(known)}") if part)
