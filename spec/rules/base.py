"""What every rule is made of: facts with their places, and findings made from facts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from draftc.spec.diagnostic import Code, Diagnostic, Label
from draftc.spec.layout import AttentionSpec
from draftc.spec.parts import Parts
from draftc.spec.span import Origin, Span

Spec = TypeVar("Spec", bound=AttentionSpec)


class Rule(Protocol):
    """A module of this package: one code, and the check that finds it."""

    CODE: Code

    def check(self, parts: Parts) -> Iterator[Diagnostic]:
        """Yield a finding for every place of `parts` that breaks the rule."""
        ...


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that takes part in a finding: its name, where it stands, where it came from, and whose it is."""

    name: str
    value: object
    span: Span
    origin: Origin | None = None
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.word}"

    @property
    def word(self) -> str:
        """The value as messages print it."""
        return number(self.value)

    @property
    def note(self) -> str:
        """Where the value was inherited from; empty for a value that the layout states at its place."""
        via = "layout" if self.origin is None else self.origin.via
        if via == "layout":
            return ""
        if via.startswith("extends "):
            return f"{self} is inherited from {via.removeprefix('extends ')}"
        return {"default": f"{self} is the default", "target": f"{self} is the target's"}.get(
            via, f"{self} comes from {via}"
        )

    @property
    def label(self) -> Label | None:
        """The place to point at beside the primary one, or None for a value that no text states."""
        return None if self.origin is not None and self.origin.via == "default" else Label(self.span, str(self))


def number(value: object) -> str:
    """Print a value as the language page does: `1.0` is `1`, a boolean is `true`, everything else as Python does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def listed(words: Iterable[object], last: str = "and") -> str:
    """Join words as prose does: `1, 2 and 4`."""
    texts = [number(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural unless there is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def proper_divisors(count: int) -> list[int]:
    """Return the divisors of `count` below `count`, smallest first."""
    return [each for each in range(1, count // 2 + 1) if count % each == 0]


def integer(parts: Parts, key: str) -> int | None:
    """Return the top-level integer `key`, or None when it is broken or absent."""
    value = parts.values.get(key)
    return value if isinstance(value, int) else None


def taps(parts: Parts) -> tuple[int, ...]:
    """Return the tapped layers of the target, or nothing when the list is broken."""
    value = parts.values.get("target_layer_ids")
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def top(parts: Parts, key: str) -> Fact:
    """The top-level value `key`, at the target when it is taken from there."""
    origin = parts.origins.get(f"/{key}")
    span = parts.span(key) if parts.states(key) else parts.span("target", key)
    return Fact(key, parts.values.get(key), span, origin)


def of_target(parts: Parts, key: str) -> Fact:
    """The value `key` of the target."""
    origin = parts.origins.get(f"/target/{key}")
    return Fact(key, getattr(parts.target, key), parts.span("target", key), origin, owner="target.")


def of_attention(parts: Parts, attention: str, key: str) -> Fact:
    """The value `key` of an attention, at the place of the base that states it."""
    value = getattr(parts.attentions[attention], key)
    origin = parts.origins.get(f"/attentions/{attention}/{key}")
    return Fact(key, value, parts.attention_span(attention, key), origin)


def of_family(parts: Parts, key: str) -> Fact:
    """The value `key` of the family block."""
    name = parts.family.name if parts.family else ""
    return Fact(key, getattr(parts.family, key), parts.span(name, key))


def every(parts: Parts, kind: type[Spec]) -> Iterator[tuple[str, Spec]]:
    """Yield each attention of that type that some layer uses and that is whole."""
    for name, attention in parts.attentions.items():
        if isinstance(attention, kind):
            yield name, attention


def dropout(parts: Parts) -> Fact | None:
    """Return attention_dropout when there is any."""
    value = parts.values.get("attention_dropout")
    return top(parts, "attention_dropout") if isinstance(value, (int, float)) and value > 0 else None


def windows(parts: Parts) -> Iterator[tuple[str, int]]:
    """Yield the window of each attention in use that slides."""
    for name, attention in parts.attentions.items():
        if attention.sliding_window is not None:
            yield name, attention.sliding_window


def stack(parts: Parts) -> tuple[AttentionSpec, ...]:
    """Return the attention of each layer, or nothing unless the whole stack is known."""
    if parts.stack is None or any(name not in parts.attentions for name in parts.stack):
        return ()
    return tuple(parts.attentions[name] for name in parts.stack)


def own_first(*facts: Fact) -> tuple[Fact, list[Fact]]:
    """Return the fact to stand at, and the others: own values before those of a base, defaults last."""
    first, *rest = sorted(facts, key=_distance)
    return first, rest


def _distance(fact: Fact) -> int:
    via = "layout" if fact.origin is None else fact.origin.via
    return {"layout": 0, "default": 2}.get(via, 1)


def head_counts(parts: Parts, attention: str) -> tuple[Fact, list[Fact]]:
    """The two head counts of a gqa attention, as `own_first` orders them."""
    return own_first(*(of_attention(parts, attention, key) for key in ("num_key_value_heads", "num_attention_heads")))


def finding(code: Code, message: str, at: Fact, others: Sequence[Fact] = (), advice: str = "") -> Diagnostic:
    """Make the diagnostic that stands at one fact and points at the others that took part."""
    labels = dict.fromkeys(fact.label for fact in others if fact.span != at.span)
    return Diagnostic(
        code=code,
        message=message,
        span=at.span,
        secondary=tuple(label for label in labels if label),
        notes=tuple(fact.note for fact in (at, *others) if fact.note),
        help=advice,
        values=tuple((fact.owner + fact.name, fact.value) for fact in (at, *others)),
    )


def distinct(found: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Drop what was already said: attentions that share a rope share its findings."""
    yield from dict.fromkeys(found)
