"""From PyYAML's events to nodes with spans.

Events instead of PyYAML's own nodes, because only events still show where an alias stands.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    StreamStartEvent,
)

from draftc.spec.codes import (
    DUPLICATE_KEY,
    KEY_NOT_TEXT,
    LEADING_ZERO,
    MERGE_KEY,
    NOT_ONE_MAPPING,
    RECURSIVE_ALIAS,
    TAG_NOT_ALLOWED,
    TOO_LARGE,
    YAML_SYNTAX,
)
from draftc.spec.diagnostic import Code, Diagnostic, Label
from draftc.spec.nodes import Entry, Mapping, Node, Scalar, Sequence
from draftc.spec.scalars import Resolved, resolve, resolve_as
from draftc.spec.source import Source
from draftc.spec.span import Span
from draftc.spec.whitespace import diagnose, edge

MOST_NODES = 100_000
DEEPEST = 64
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset({"str", "null", "bool", "int", "float"})


class TooLargeError(Exception):
    """The document passes a limit; the diagnostic says which. Nodes built so far are of no use."""


@dataclass(frozen=True, slots=True)
class _Anchored:
    node: Node
    size: int
    height: int


@dataclass
class Composer:
    """Builds the nodes of one document and collects what is wrong with it.

    `inside` holds the (start, end) offsets of scalars with more than one line, `flow` those of a root in braces.
    """

    source: Source
    events: Iterator[Event]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    inside: list[tuple[int, int]] = field(default_factory=list)
    flow: tuple[int, int] = (0, 0)
    _anchors: dict[str, _Anchored | Span] = field(default_factory=dict)
    _size: int = 0
    _end: int = 0

    def document(self) -> Node | None:
        """Return the root of the only document; None when there is none or when a second one follows.

        Raises TooLargeError, and whatever PyYAML raises for broken syntax.
        """
        event = self._next()
        while isinstance(event, StreamStartEvent):
            event = self._next()
        if not isinstance(event, DocumentStartEvent):
            self._report(
                NOT_ONE_MAPPING,
                "the file is empty",
                self.source.span(0, 0),
                help="`draftc init` writes a layout to start from",
            )
            return None
        root, _ = self._node(self._next(), 1)
        self._next()
        return root if self._ends() else None

    def _ends(self) -> bool:
        event = self._next()
        if not isinstance(event, DocumentStartEvent):
            return True
        start = _start(event)
        self._report(
            NOT_ONE_MAPPING,
            "a second document begins here",
            self.source.span(start, start + 3),
            help="write one layout per file",
        )
        return False

    def _next(self) -> Event:
        return next(self.events)

    def _report(self, code: Code, message: str, span: Span, *secondary: Label, help: str = "") -> None:  # noqa: A002
        self.diagnostics.append(Diagnostic(code, message, span, secondary, help=help))

    def _node(self, event: Event, depth: int) -> tuple[Node, int]:
        """Return the node that `event` begins, and its height."""
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        self._grow(1, depth, event)
        size = self._size - 1
        anchor = event.anchor if isinstance(event, NodeEvent) else None
        if anchor is not None:
            self._anchors[anchor] = self._span(event)
        node, height = (
            self._collection(event, depth) if isinstance(event, CollectionStartEvent) else (self._scalar(event), 1)
        )
        if anchor is not None:
            self._anchors[anchor] = _Anchored(node, self._size - size, height)
        return node, height

    def _grow(self, size: int, depth: int, event: Event) -> None:
        self._size += size
        if self._size > MOST_NODES:
            message = f"the document has more than {MOST_NODES} nodes after aliases"
        elif depth > DEEPEST:
            message = f"the document is nested more than {DEEPEST} deep"
        else:
            return
        self._report(TOO_LARGE, message, self._span(event))
        raise TooLargeError

    def _alias(self, event: AliasEvent, depth: int) -> tuple[Node, int]:
        span = self._span(event)
        self._end = span.end.offset
        found = self._anchors.get(event.anchor or "")
        if isinstance(found, _Anchored):
            self._grow(found.size, depth + found.height - 1, event)
            return replace(found.node, aliases=(*found.node.aliases, span)), found.height
        self._grow(1, depth, event)
        if found is None:
            self._report(YAML_SYNTAX, f"alias *{event.anchor} names no anchor that stands before it", span)
        else:
            label = Label(found, "the node that it would contain begins here")
            self._report(RECURSIVE_ALIAS, f"alias *{event.anchor} stands inside the node that it names", span, label)
        return Scalar(None, span, f"*{event.anchor}", faulty=True), 1

    def _span(self, event: Event) -> Span:
        return self.source.span(_start(event), _end(event))

    def _collection(self, event: CollectionStartEvent, depth: int) -> tuple[Node, int]:
        kind = "map" if isinstance(event, MappingStartEvent) else "seq"
        faulty = self._refuses(event, (kind,))
        start = _start(event)
        if isinstance(event, MappingStartEvent):
            entries, lacking, height = self._entries(depth)
            node: Node = Mapping(entries, self.source.span(start, self._end), faulty=faulty or lacking)
        else:
            items, height = self._items(depth)
            node = Sequence(items, self.source.span(start, self._end), faulty=faulty)
        if depth == 1 and event.flow_style:
            self.flow = (start, self._end)
        return node, height + 1

    def _items(self, depth: int) -> tuple[tuple[Node, ...], int]:
        items: list[Node] = []
        highest = 0
        while not isinstance(event := self._next(), CollectionEndEvent):
            item, height = self._node(event, depth + 1)
            items.append(item)
            highest = max(highest, height)
        self._close(event)
        return tuple(items), highest

    def _entries(self, depth: int) -> tuple[tuple[Entry, ...], bool, int]:
        """Return the entries, whether some had to be left out, and the largest height of a key or value."""
        entries: dict[str, Entry] = {}
        lacking = False
        highest = 0
        while not isinstance(event := self._next(), CollectionEndEvent):
            key, key_height = self._node(event, depth + 1)
            value, height = self._node(self._next(), depth + 1)
            highest = max(highest, key_height, height)
            lacking = self._enter(entries, key, value) or lacking
        self._close(event)
        return tuple(entries.values()), lacking, highest

    def _close(self, event: Event) -> None:
        # A block ends where the next token begins, which may be many lines below its last word.
        if _end(event) > _start(event):
            self._end = _end(event)

    def _enter(self, entries: dict[str, Entry], key: Node, value: Node) -> bool:
        """Add an entry; return whether the mapping thereby lacks what the writer put into it."""
        if not isinstance(key, Scalar) or not isinstance(key.value, str):
            self._refuse_key(key)
            return True
        if key.value == "<<" and not key.quoted:
            self._report(
                MERGE_KEY,
                "merge keys are not part of YAML 1.2",
                key.span,
                help="attentions share keys by `extends: NAME`",
            )
            return True
        first = entries.get(key.value)
        if first is None:
            entries[key.value] = Entry(key, value)
            return False
        label = Label(first.key.span, "it is first given here")
        place = key.aliases[-1] if key.aliases else key.span
        self._report(DUPLICATE_KEY, f"key {key.value} is given twice", place, label, help="keep one of them")
        entries[key.value] = replace(first, value=replace(first.value, faulty=True))
        return False

    def _refuse_key(self, key: Node) -> None:
        if key.faulty:
            return
        what = f"{key.text or 'empty'}" if isinstance(key, Scalar) else "a collection"
        help_text = f'write it in quotes: `"{key.text}"`' if isinstance(key, Scalar) and key.text else ""
        self._report(KEY_NOT_TEXT, f"a key must be text, not {what}", key.span, help=help_text)

    def _scalar(self, event: Event) -> Scalar:
        if not isinstance(event, ScalarEvent):
            raise TypeError(f"PyYAML gave {event!r} in the place of a node")
        span = self._span(event)
        self._end = max(self._end, span.end.offset)
        if span.start.line != span.end.line:
            self.inside.append((span.start.offset, span.end.offset))
        quoted = event.style in ("'", '"', "|", ">")
        if self._separated_wrongly(event, quoted):
            return Scalar(event.value, span, event.value, quoted, faulty=True)
        faulty = self._refuses(event, _SCALAR_TAGS)
        found = Resolved(event.value) if faulty else self._resolve(event, quoted)
        if found is None:
            self._report(
                TAG_NOT_ALLOWED,
                f"{event.value!r} is not what its tag !!{_core(event.tag or '')} says",
                span,
                help="drop the tag",
            )
            return Scalar(event.value, span, event.value, quoted, faulty=True)
        if found.fault is not None:
            self._report_fault(found.fault, event.value, span)
        return Scalar(found.value, span, event.value, quoted, faulty=faulty or found.fault is not None)

    def _separated_wrongly(self, event: ScalarEvent, quoted: bool) -> bool:
        at = None if quoted else edge(event.value)
        if at is None:
            return False
        found = self.source.text.find(event.value[at], _start(event), _end(event))
        self.diagnostics.append(diagnose(self.source, max(found, _start(event))))
        return True

    def _resolve(self, event: ScalarEvent, quoted: bool) -> Resolved | None:
        if event.tag is not None:
            return resolve_as(_core(event.tag), event.value)
        return Resolved(event.value) if quoted else resolve(event.value)

    def _report_fault(self, code: Code, text: str, span: Span) -> None:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        if code is LEADING_ZERO:
            plain = text.lstrip("+-").lstrip("0") or "0"
            help_text = f"write `{text[0] if text[0] in '+-' else ''}{plain}`, or `0o{plain}` if octal is meant"
            self._report(code, f"{shown} begins with a zero: readers disagree on what it means", span, help=help_text)
            return
        self._report(
            code,
            f"{shown} is not a finite number",
            span,
            help="write a finite number; infinity and nan mean nothing in a layout",
        )

    def _refuses(self, event: NodeEvent, allowed: tuple[str, ...] | frozenset[str]) -> bool:
        tag: str | None = getattr(event, "tag", None)
        if tag is None or (tag.startswith(_CORE) and _core(tag) in allowed):
            return False
        shown = f"!!{_core(tag)}" if tag.startswith(_CORE) else tag
        start = _start(event)
        self._report(
            TAG_NOT_ALLOWED,
            f"tag {shown} is not allowed here",
            self.source.span(start, _end(event)),
            help="drop the tag",
        )
        return True


def _core(tag: str) -> str:
    return tag.removeprefix(_CORE)


def _start(event: Event) -> int:
    return event.start_mark.index if event.start_mark else 0


def _end(event: Event) -> int:
    return event.end_mark.index if event.end_mark else 0
