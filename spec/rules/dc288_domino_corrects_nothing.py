"""Domino's GRU corrects the slots behind the pure prefix; a prefix as long as the draft leaves it none."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Domino
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_family, top

CODE = Code("DC288", "domino-corrects-nothing", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a prefix that covers all block_size - 1 drafted tokens."""
    block, family = integer(parts, "block_size"), parts.family
    if not isinstance(family, Domino) or block is None or family.pure_draft_prefix_len < block - 1:
        return
    start = family.pure_draft_prefix_len + (0 if family.shift_label else 1)
    slots = f", whose slots 0..{block - 2} draft" if family.shift_label else ""
    usual = "; most drafts use 1" if block > 2 else ""
    yield finding(
        CODE,
        f"pure_draft_prefix_len {family.pure_draft_prefix_len} starts the correction at slot {start}"
        f" of block_size {block}{slots}",
        of_family(parts, "pure_draft_prefix_len"),
        [of_family(parts, "shift_label"), top(parts, "block_size")],
        f"use at most {block - 2}{usual}",
    )
