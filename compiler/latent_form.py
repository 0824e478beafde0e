"""Which form of latent attention decodes: keys and values of all heads, or queries moved to the latent."""

from dataclasses import dataclass
from typing import Literal

from draftc.compiler.costs import ITEM_BYTES
from draftc.spec.layout import Mla

FormName = Literal["expanded", "absorbed"]


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form in which an attention decodes, and why, with its numbers."""

    form: FormName
    reason: str


def expanded_flops(spec: Mla, queries: int) -> int:
    """Floating-point operations that one cached row costs all heads: grow its keys and values, score it, sum it."""
    grown = spec.kv_lora_rank * (spec.qk_nope_head_dim + spec.v_head_dim)
    read = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    return 2 * spec.num_attention_heads * (grown + queries * read)


def absorbed_flops(spec: Mla, queries: int) -> int:
    """The same on the latent itself: score r_kv + d_rope channels for every head and query, sum r_kv."""
    return 2 * spec.num_attention_heads * queries * (2 * spec.kv_lora_rank + spec.qk_rope_head_dim)


def expanded_row_bytes(spec: Mla, dtype: str) -> int:
    """Bytes of the keys and values of all heads that one row grows to."""
    read = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    return spec.num_attention_heads * read * ITEM_BYTES[dtype]


def latent_row_bytes(spec: Mla, dtype: str) -> int:
    """Bytes of one row of the latent and the shared key, all that is cached in either form."""
    return (spec.kv_lora_rank + spec.qk_rope_head_dim) * ITEM_BYTES[dtype]


def cheaper_form(spec: Mla, block_size: int, dtype: str) -> FormChoice:
    """Return the form that costs a decoding step of one block less for every cached row.

    Rows are what grows; what a step does once is the same to within the growth of `block_size` rows. Where operations
    tie, the expanded form stays, which is the one of training.
    """
    grown, moved = expanded_flops(spec, block_size), absorbed_flops(spec, block_size)
    numbers = (
        f"{block_size} queries cost a cached row {moved:,} operations absorbed, {grown:,} expanded; "
        f"it is {latent_row_bytes(spec, dtype):,} bytes as latent, {expanded_row_bytes(spec, dtype):,} expanded"
    )
    return FormChoice("absorbed" if moved < grown else "expanded", numbers)
