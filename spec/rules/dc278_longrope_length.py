"""longrope gives a factor for every pair of rotated channels."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import Fact, counted, distinct, finding, of_attention
from draftc.spec.rules.ropes import Scaled, scaled

CODE = Code("DC278", "longrope-length", Severity.ERROR)
LISTS = ("short_factor", "long_factor")


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find longrope scalings with a list of another length; both lists are one finding."""
    yield from distinct(found for each in scaled(parts, "longrope") for found in _findings(parts, each))


def _findings(parts: Parts, each: Scaled) -> Iterator[Diagnostic]:
    pairs = each.pairs
    sizes = [(key, len(value)) for key in LISTS if isinstance(value := each.scaling.get(key), tuple)]
    wrong = [Fact(key, size, each.fact("scaling", key, value=size).span) for key, size in sizes if size != pairs]
    if pairs is not None and wrong:
        width = "qk_rope_head_dim" if each.attention.kind == "mla" else "head_dim"
        size = int(str(wrong[0].value))
        yield finding(
            CODE,
            f"{wrong[0].name} has {size} {'entry' if size == 1 else 'entries'}"
            f" for {counted(pairs, 'pair')} of rotated channels",
            wrong[0],
            [*wrong[1:], of_attention(parts, each.name, width)],
            "give one entry per pair",
        )
