"""fla-core's KDA kernel takes gate bounds down to -5 and is written for the exponents that they give."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Kda
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, number, of_attention

CODE = Code("DC223", "gate-bound-outside-kernel", Severity.WARNING)
LOWEST = -5


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find kda attentions whose gate_lower_bound the kernel refuses."""
    for name, spec in every(parts, Kda):
        if spec.gate_lower_bound is not None and spec.gate_lower_bound < LOWEST:
            yield finding(
                CODE,
                f"gate_lower_bound {number(spec.gate_lower_bound)} of {name} is below {LOWEST},"
                " the limit of fla-core's kernel",
                of_attention(parts, name, "gate_lower_bound"),
                advice="use -5.0 or above, or accept that `kda_fla` refuses the layer",
            )
