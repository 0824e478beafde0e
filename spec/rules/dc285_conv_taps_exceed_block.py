"""DFlash2's convolution runs inside one block, so it has no more taps than the block has slots."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Dflash2
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, integer, of_family, top

CODE = Code("DC285", "conv-taps-exceed-block", Severity.ERROR)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a convolution that is longer than a block."""
    block = integer(parts, "block_size")
    if isinstance(parts.family, Dflash2) and block is not None and parts.family.conv_kernel_size > block:
        yield finding(
            CODE,
            f"conv_kernel_size {parts.family.conv_kernel_size} exceeds block_size {block}",
            of_family(parts, "conv_kernel_size"),
            [top(parts, "block_size")],
            "taps never cross a block; use at most block_size",
        )
