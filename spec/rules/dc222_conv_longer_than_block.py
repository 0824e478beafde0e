"""With a reset state a convolution starts from zeros at every block, so taps beyond the block never see data."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Kda
from draftc.spec.parts import Parts
from draftc.spec.rules.base import counted, every, finding, integer, of_attention, top

CODE = Code("DC222", "conv-longer-than-block", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find resetting kda attentions with more taps than a block has slots."""
    block = integer(parts, "block_size")
    for name, spec in every(parts, Kda):
        taps = spec.short_conv_kernel_size
        if block is None or spec.context_state == "scan" or taps <= block:
            continue
        idle = counted(taps - block, "tap")
        yield finding(
            CODE,
            f"short_conv_kernel_size {taps} of {name} exceeds block_size {block}:"
            f" with context_state reset {idle} always {'reads' if taps - block == 1 else 'read'} zeros",
            of_attention(parts, name, "short_conv_kernel_size"),
            [top(parts, "block_size")],
            "lower short_conv_kernel_size to block_size, or use `context_state: scan`",
        )
