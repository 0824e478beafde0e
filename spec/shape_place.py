"""A violation of the schema together with the nodes around it."""

from dataclasses import dataclass

from draftc.spec.nodes import Entry, Mapping, Node, Pointer, Scalar, find, key_at
from draftc.spec.places import Owner, named, owner
from draftc.spec.schema_errors import Violation
from draftc.spec.span import Span


@dataclass(frozen=True, slots=True)
class Place:
    """A violation at its place in a layout, of which the node at `base` and what is below it are at hand."""

    root: Node
    base: Pointer
    violation: Violation

    @property
    def pointer(self) -> Pointer:
        """Where the violation stands, from the root of the layout."""
        return (*self.base, *self.violation.pointer)

    @property
    def name(self) -> str:
        """How a message calls the place."""
        return named(self.pointer)

    @property
    def key(self) -> str:
        """The last step of the pointer."""
        return str(self.pointer[-1]) if self.pointer else ""

    @property
    def node(self) -> Node:
        """The offending node; for a missing key the mapping that lacks it."""
        return find(self.root, self.violation.pointer) or self.mapping

    @property
    def text(self) -> str:
        """The offending scalar as it is written, empty for collections."""
        return self.node.text if isinstance(self.node, Scalar) else ""

    @property
    def mapping(self) -> Node:
        """The node above."""
        return find(self.root, self.violation.parent) or self.root

    @property
    def owner(self) -> Owner:
        """The mapping above, in words."""
        return owner(self.mapping, self.pointer[:-1])

    @property
    def key_span(self) -> Span:
        """The key of the place, its value when it has none."""
        key = key_at(self.root, self.violation.pointer)
        return key.span if key else self.node.span

    def entries(self) -> tuple[Entry, ...]:
        """The entries of the mapping above."""
        return self.mapping.entries if isinstance(self.mapping, Mapping) else ()
