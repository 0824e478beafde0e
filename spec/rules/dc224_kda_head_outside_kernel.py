"""fla-core's KDA kernel keeps the state of a head on the chip, up to 256 channels."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Kda
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, of_attention

CODE = Code("DC224", "kda-head-outside-kernel", Severity.WARNING)
WIDEST = 256


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find kda attentions with heads that are too wide for the kernel."""
    for name, spec in every(parts, Kda):
        if spec.head_dim > WIDEST:
            yield finding(
                CODE,
                f"head_dim {spec.head_dim} of {name} exceeds {WIDEST}, the limit of fla-core's kernel",
                of_attention(parts, name, "head_dim"),
                advice="use 64 to 256 channels, or accept that `kda_fla` refuses the layer",
            )
