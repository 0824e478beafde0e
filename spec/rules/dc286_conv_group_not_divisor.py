"""DFlash2's convolution gives each group of channels one coefficient per tap, and groups are equally large."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dflash2
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, listed, of_family, proper_divisors, top

CODE = Code("DC286", "conv-group-not-divisor", Severity.ERROR)
USUAL = (16, 32, 64)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a group size that leaves channels over."""
    hidden = integer(parts, "hidden_size")
    if not isinstance(parts.family, Dflash2) or hidden is None:
        return
    group = parts.family.conv_group_size
    if hidden % group:
        yield finding(
            CODE,
            f"conv_group_size {group} does not divide hidden_size {hidden}",
            of_family(parts, "conv_group_size"),
            [top(parts, "hidden_size")],
            f"use a divisor of hidden_size, e.g. {listed(_examples(hidden, group), last='or')}",
        )


def _examples(hidden: int, group: int) -> list[int]:
    """The usual sizes that fit, or else the divisors nearest to what was asked for."""
    usual = [size for size in USUAL if hidden % size == 0]
    return usual or sorted(sorted([*proper_divisors(hidden), hidden], key=lambda each: abs(each - group))[:3])
