"""Equal mscale and mscale_all_dim cancel on cos and sin; only mla brings the factor back, in its softmax."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Gqa
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding
from draftc.spec.rules.ropes import scaled

CODE = Code("DC281", "yarn-temperature-cancelled", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find gqa and mha attentions whose yarn temperature is cancelled."""
    yield from distinct(_findings(parts))


def _findings(parts: Parts) -> Iterator[Diagnostic]:
    for each in scaled(parts, "yarn"):
        mscale = each.given("mscale")
        if mscale is None or mscale != each.given("mscale_all_dim") or each.given("attention_factor") is not None:
            continue
        if isinstance(each.attention, Gqa):
            at = each.scaling_fact("mscale")
            yield finding(
                CODE,
                f"{at} = mscale_all_dim on {each.attention.kind}:"
                " cos and sin take factor 1 and nothing scales the softmax",
                at,
                [each.scaling_fact("mscale_all_dim")],
                "drop both on gqa and mha; only mla uses mscale_all_dim again in its softmax",
            )
