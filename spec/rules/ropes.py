"""Ropes as rules read them: whose rope it is, where it is written, how many channels it turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from draftc.spec.layout import Gqa, Mla, Rope, RopeScaling, RopeType
from draftc.spec.nodes import Pointer
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact
from draftc.spec.span import Origin

TOP: Pointer = ("rope",)


@dataclass(frozen=True)
class Turned:
    """A rope as one attention uses it; `place` is the pointer to where the rope is written."""

    name: str
    attention: Gqa | Mla
    rope: Rope
    place: Pointer
    parts: Parts

    @property
    def width(self) -> Fraction:
        """Channels that turn, computed exactly from the decimal digits that the layout states."""
        if isinstance(self.attention, Mla):
            return Fraction(self.attention.qk_rope_head_dim)
        return self.attention.head_dim * Fraction(repr(float(self.rope.partial_rotary_factor)))

    @property
    def pairs(self) -> int | None:
        """Pairs of channels that turn, or None when their number is not whole (DC272)."""
        return int(self.width) // 2 if self.width.denominator == 1 and self.width % 2 == 0 else None

    def fact(self, *key: str, value: object) -> Fact:
        """A value of the rope, which may be a default."""
        origin = None if self.parts.states(*self.place, *key) else Origin("default")
        return Fact(key[-1], value, self.parts.span(*self.place, *key), origin, owner="rope.")


@dataclass(frozen=True)
class Scaled(Turned):
    """A turned rope with a frequency scaling."""

    scaling: RopeScaling

    def given(self, key: str) -> int | float | None:
        """Return the number `key` of the scaling, or None when it has none."""
        value = self.scaling.get(key)
        return value if isinstance(value, (int, float)) else None

    def states(self, key: str) -> bool:
        """Whether the layout itself writes `key` in the scaling."""
        return self.parts.states(*self.place, "scaling", key)

    def scaling_fact(self, key: str) -> Fact:
        """A value of the scaling."""
        return self.fact("scaling", key, value=self.scaling.get(key))


def chain(parts: Parts, attention: str) -> Iterator[str]:
    """Yield the attention, what it extends, what that extends, and so on."""
    seen: set[str] = set()
    here: str | None = attention
    while here is not None and here not in seen:
        yield here
        seen.add(here)
        here = parts.bases.get(here)


def owners(parts: Parts, attention: str) -> Iterator[tuple[str, Pointer]]:
    """Yield who states a rope for the attention, nearest first, with its pointer."""
    for name in chain(parts, attention):
        if parts.states(*parts.place(name), "rope"):
            yield name, (*parts.place(name), "rope")


def rope_place(parts: Parts, attention: str) -> Pointer:
    """Return the pointer of the rope that a gqa, mha or mla attention uses."""
    return next((place for _, place in owners(parts, attention)), TOP)


def turned(parts: Parts) -> Iterator[Turned]:
    """Yield every attention in use that has a rope."""
    for name, attention in parts.attentions.items():
        if isinstance(attention, (Gqa, Mla)) and attention.rope is not None:
            yield Turned(name, attention, attention.rope, rope_place(parts, name), parts)


def scaled(parts: Parts, *types: RopeType) -> Iterator[Scaled]:
    """Yield every attention in use whose rope has a scaling of one of `types`."""
    for each in turned(parts):
        scaling = each.rope.scaling
        if scaling is not None and scaling.rope_type in types:
            yield Scaled(each.name, each.attention, each.rope, each.place, parts, scaling)
