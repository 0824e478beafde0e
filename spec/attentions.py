"""`extends` written out: each attention becomes a kind with all keys that it states or inherits."""

from collections.abc import Collection, Iterator
from collections.abc import Mapping as MappingOf
from collections.abc import Set as SetOf
from dataclasses import dataclass, field

from draftc.spec.diagnostic import Diagnostic, Label
from draftc.spec.finding import is_whole
from draftc.spec.layers import Written
from draftc.spec.nodes import Entry, Mapping, Node, Pointer, Scalar, Value, plain
from draftc.spec.resolution_codes import EXTENDS_CYCLE, KEY_NOT_OF_KIND, UNKNOWN_BASE
from draftc.spec.schema_check import check_subschema
from draftc.spec.schema_facts import properties
from draftc.spec.span import Origin, Span
from draftc.spec.suggest import did_you_mean

KINDS = ("gqa", "mha", "mla", "kda")


@dataclass(frozen=True, slots=True)
class Key:
    """The value of one key, and where it is written: in the attention itself or in one of its bases."""

    node: Node
    origin: Origin


@dataclass(frozen=True, slots=True)
class Expanded:
    """An attention without `extends`; `kind` is among its keys. `chain` names its bases, the nearest first."""

    name: str
    kind: str
    keys: MappingOf[str, Key]
    place: Span
    chain: tuple[str, ...] = ()

    def stated(self) -> dict[str, Value]:
        """The keys as ordinary values."""
        return {name: plain(key.node) for name, key in self.keys.items()}


@dataclass(frozen=True, slots=True)
class Expansion:
    """The attentions that are whole, by name, and what was wrong with the others."""

    whole: MappingOf[str, Expanded] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


def base_of(node: Mapping) -> str | None:
    """Return the name that an attention extends, or None."""
    base = node.get("extends")
    return base.value if isinstance(base, Scalar) and isinstance(base.value, str) else None


def chain_of(name: str, written: MappingOf[str, Written]) -> tuple[str, ...]:
    """Return `name`, its base, the base of that, and so on.

    The chain ends with an attention that states its kind, with a name that nobody has, or, in a cycle, with the first
    name that comes again.
    """
    chain: dict[str, None] = {}
    here: str | None = name
    while here is not None and here not in chain and here in written and (here == name or _is_base(here, written)):
        chain[here] = None
        here = base_of(written[here].node)
    return (*chain, here) if here is not None else tuple(chain)


def _is_base(name: str, written: MappingOf[str, Written]) -> bool:
    return name in written and written[name].layer is None


def expand_attentions(written: MappingOf[str, Written], known: Collection[str], broken: SetOf[Pointer]) -> Expansion:
    """Lay the own keys of each attention over those of its base, each value replaced whole.

    `known` holds every name of `attentions`, also of those that are not mappings.

    Reports DC121 for a base that nobody has, DC122 once per cycle, DC123 for an own key that the kind lacks, and what
    the schema of the kind says of an own value (DC1xx). What extends a broken attention is left out in silence.
    """
    done: dict[str, Expanded | None] = {}
    diagnostics = [*_unknown_bases(written, known, broken), *_cycles(written)]
    for name in written:
        for member in reversed(chain_of(name, written)):
            if member not in done and (member == name or _is_base(member, written)):
                done[member] = _expand(written[member], done, broken, diagnostics)
    return Expansion({name: one for name, one in done.items() if one is not None}, tuple(diagnostics))


def _expand(
    one: Written, done: MappingOf[str, Expanded | None], broken: SetOf[Pointer], diagnostics: list[Diagnostic]
) -> Expanded | None:
    if not is_whole(broken, *one.pointer):
        return None
    name = base_of(one.node)
    if name is None:
        return _root(one)
    base = done.get(name)
    if base is None or one.name == name:
        return None
    wrong = tuple(_wrong_keys(one, base))
    diagnostics.extend(wrong)
    return None if wrong else _laid_over(one, base)


def _root(one: Written) -> Expanded:
    keys = {entry.name: Key(entry.value, Origin("layout", entry.value.span)) for entry in one.node.entries}
    return Expanded(one.name, str(plain(keys["kind"].node)), keys, one.place)


def _laid_over(one: Written, base: Expanded) -> Expanded:
    inherited = {name: Key(key.node, Origin(_via(key, base), key.origin.span)) for name, key in base.keys.items()}
    own = {entry.name: Key(entry.value, Origin("layout", entry.value.span)) for entry in _own(one)}
    return Expanded(one.name, base.kind, {**inherited, **own}, one.place, (base.name, *base.chain))


def _via(key: Key, base: Expanded) -> str:
    return f"extends {base.name}" if key.origin.via == "layout" else key.origin.via


def _own(one: Written) -> Iterator[Entry]:
    return (entry for entry in one.node.entries if entry.name != "extends")


def _wrong_keys(one: Written, base: Expanded) -> Iterator[Diagnostic]:
    schemas = properties(base.kind)
    for entry in _own(one):
        if entry.name not in schemas:
            yield _not_of_kind(one, entry, base)
            continue
        for found in check_subschema(entry.value, schemas[entry.name], (*one.pointer, entry.name)):
            yield found.diagnostic


def _not_of_kind(one: Written, entry: Entry, base: Expanded) -> Diagnostic:
    root = (base.name, *base.chain)[-1]
    who = one.name if one.layer is None else one.label
    fitting = next(kind for kind in KINDS if entry.name in properties(kind))
    return Diagnostic(
        KEY_NOT_OF_KIND,
        f"{entry.name} is not a key of {base.kind}, which {who} inherits from {root}",
        entry.key.span,
        (Label(base.place, f"{base.name} is {base.kind}"),),
        help=f"drop it, or write a new attention with `kind: {fitting}`",
    )


def _unknown_bases(
    written: MappingOf[str, Written], known: Collection[str], broken: SetOf[Pointer]
) -> Iterator[Diagnostic]:
    for one in written.values():
        base = base_of(one.node)
        if base is None or base in known or not is_whole(broken, *one.pointer, "extends"):
            continue
        yield Diagnostic(
            UNKNOWN_BASE,
            f"{one.label} extends {base}, which is not in attentions",
            _extends_span(one),
            help=did_you_mean(base, [name for name in known if name != one.name]) or f"known: {', '.join(known)}",
        )


def _extends_span(one: Written) -> Span:
    node = one.node.get("extends")
    return node.span if node is not None else one.place


def _cycles(written: MappingOf[str, Written]) -> Iterator[Diagnostic]:
    reported: set[str] = set()
    for name in written:
        chain = chain_of(name, written)
        cycle = chain[chain.index(chain[-1]) : -1]
        if not cycle or reported & set(cycle) or not _is_base(chain[-1], written):
            continue
        reported.update(cycle)
        yield _cycle(cycle, written)


def _cycle(cycle: tuple[str, ...], written: MappingOf[str, Written]) -> Diagnostic:
    first, *others = (written[name] for name in cycle)
    return Diagnostic(
        EXTENDS_CYCLE,
        f"{' -> '.join((*cycle, cycle[0]))} is a cycle",
        _extends_span(first),
        tuple(Label(_extends_span(one), f"{one.name} extends {base_of(one.node)}") for one in others),
        help="give one of them a `kind` and its dimensions",
    )
