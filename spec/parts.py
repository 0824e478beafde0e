"""What rules read: the pieces of a layout that earlier steps left whole."""

from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field

from draftc.spec.layout import AttentionSpec, Consumer, Family, Target
from draftc.spec.nodes import Mapping, Node, Pointer, find, key_at
from draftc.spec.span import Origin, Span


@dataclass(frozen=True)
class Parts:
    """A layout on its way. Wherever an earlier step reported an error, a field is None or a key is absent.

    `values` holds the resolved top-level scalars by key (`hidden_size`, `block_size`, `rope`, ...); a key is absent
    when its value is broken or has no source. `attentions` holds every attention that some layer uses and that is
    whole; `stack` names the attention of each layer, None when the list of layers is broken or names an attention that
    is broken. `bases` maps an attention to what it extends, `places` an attention written in place to its pointer,
    `origins` a JSON pointer (`/hidden_size`, `/target/vocab_size`, `/attentions/near/rope`) to where its value came
    from.
    """

    root: Mapping
    values: MappingOf[str, object]
    target: Target | None
    family: Family | None
    attentions: MappingOf[str, AttentionSpec]
    stack: tuple[str, ...] | None
    serve_on: tuple[Consumer, ...] = ()
    allow: tuple[str, ...] = ()
    bases: MappingOf[str, str] = field(default_factory=dict)
    origins: MappingOf[str, Origin] = field(default_factory=dict)
    places: MappingOf[str, Pointer] = field(default_factory=dict)

    def place(self, attention: str) -> Pointer:
        """The pointer to where the attention is written; `places` holds those written in place (`layer<i>`)."""
        return self.places.get(attention, ("attentions", attention))

    def states(self, *pointer: str | int) -> bool:
        """Whether the file itself writes a value at `pointer`."""
        return find(self.root, pointer) is not None

    def span(self, *pointer: str | int) -> Span:
        """The span of the value at `pointer`, or of its nearest parent that is written."""
        return self._nearest(pointer).span

    def key_span(self, *pointer: str | int) -> Span:
        """The span of the key at `pointer`, or of the value when it has none."""
        key = key_at(self.root, pointer)
        return key.span if key else self.span(*pointer)

    def _nearest(self, pointer: Pointer) -> Node:
        for length in range(len(pointer), -1, -1):
            node = find(self.root, pointer[:length])
            if node is not None:
                return node
        return self.root

    def attention_span(self, attention: str, key: str = "") -> Span:
        """Where `key` of the attention is written, following `extends`; the attention's own place when nowhere."""
        origins = (self.origins.get(f"/attentions/{attention}{end}") for end in (f"/{key}", ""))
        spans = (origin.span for origin in origins if origin is not None and origin.span is not None)
        return next(spans, self.span(*self.place(attention)))
