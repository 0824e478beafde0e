"""Fused depthwise convolutions are written for 2 to 4 taps."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Kda
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, of_attention

CODE = Code("DC221", "conv-width-unfused", Severity.WARNING)
FUSED = (2, 4)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find kda attentions whose convolution no fused kernel takes."""
    low, high = FUSED
    for name, spec in every(parts, Kda):
        taps = spec.short_conv_kernel_size
        if not low <= taps <= high:
            yield finding(
                CODE,
                f"short_conv_kernel_size {taps} of {name} is outside {low}..{high}, the range of the fused convolution",
                of_attention(parts, name, "short_conv_kernel_size"),
                advice=f"use {min(max(taps, low), high)}, or accept the plain convolution",
            )
