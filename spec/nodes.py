"""YAML nodes with spans: what the reader makes of a text and every later step points into."""

from collections.abc import Iterator
from dataclasses import dataclass

from draftc.spec.span import Span

Plain = None | bool | int | float | str
Value = Plain | list["Value"] | dict[str, "Value"]
Pointer = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One scalar: its resolved value (YAML 1.2 core schema), its text as written, and whether it was quoted.

    `aliases` names the places through which this node is reached when it stands elsewhere; `faulty` marks a node that
    the reader reported, so that nothing more is said of it.
    """

    value: Plain
    span: Span
    text: str
    quoted: bool = False
    aliases: tuple[Span, ...] = ()
    faulty: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of nodes."""

    items: tuple["Node", ...]
    span: Span
    aliases: tuple[Span, ...] = ()
    faulty: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value."""

    key: Scalar
    value: "Node"

    @property
    def name(self) -> str:
        """The key as text."""
        return str(self.key.value)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys with values, in the order in which they are written; keys are unique texts.

    A faulty mapping may lack keys that were written in a way that the language refuses.
    """

    entries: tuple[Entry, ...]
    span: Span
    aliases: tuple[Span, ...] = ()
    faulty: bool = False

    def get(self, name: str) -> "Node | None":
        """Return the value of `name`, or None."""
        return next((entry.value for entry in self.entries if entry.name == name), None)

    def entry(self, name: str) -> Entry | None:
        """Return the entry called `name`, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


Node = Scalar | Sequence | Mapping


def plain(node: Node) -> Value:
    """Return the node as ordinary Python values."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {entry.name: plain(entry.value) for entry in node.entries}


def find(node: Node, pointer: Pointer) -> Node | None:
    """Return the node at `pointer` below `node`, or None when there is none."""
    here: Node | None = node
    for step in pointer:
        if isinstance(here, Mapping):
            here = here.get(str(step))
        elif isinstance(here, Sequence) and isinstance(step, int) and step < len(here.items):
            here = here.items[step]
        else:
            return None
    return here


def key_at(node: Node, pointer: Pointer) -> Scalar | None:
    """Return the key under which the node at `pointer` stands, or None for the root and for list items."""
    if not pointer:
        return None
    parent = find(node, pointer[:-1])
    entry = parent.entry(str(pointer[-1])) if isinstance(parent, Mapping) else None
    return entry.key if entry else None


def walk(node: Node, pointer: Pointer = ()) -> Iterator[tuple[Pointer, Node]]:
    """Yield every node below `node`, itself first, with its pointer."""
    yield pointer, node
    if isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from walk(item, (*pointer, index))
    elif isinstance(node, Mapping):
        for entry in node.entries:
            yield from walk(entry.value, (*pointer, entry.name))
