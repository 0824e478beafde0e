"""mla saves memory by keeping a latent that is smaller than the keys and values made from it."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.layout import Mla
from draftc.spec.parts import Parts
from draftc.spec.rules.base import every, finding, of_attention, own_first

CODE = Code("DC212", "mla-latent-not-smaller", Severity.WARNING)
WIDTHS = ("kv_lora_rank", "num_attention_heads", "qk_nope_head_dim", "v_head_dim")


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find mla attentions whose latent is as wide as what it expands to."""
    for name, spec in every(parts, Mla):
        heads, plain, value = spec.num_attention_heads, spec.qk_nope_head_dim, spec.v_head_dim
        channels = heads * (plain + value)
        if spec.kv_lora_rank >= channels:
            yield finding(
                CODE,
                f"kv_lora_rank {spec.kv_lora_rank} is not below the {channels} channels that it expands to"
                f" ({heads} x ({plain} + {value}))",
                *own_first(*(of_attention(parts, name, key) for key in WIDTHS)),
                "lower kv_lora_rank, or use gqa",
            )
