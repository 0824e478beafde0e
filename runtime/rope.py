"""Rotary position embeddings (RoFormer, arXiv:2104.09864): one table per distinct turn, two ways to pair channels.

Frequencies are computed in fp32 from constants when a forward needs them. No module holds a buffer of them, so nothing
can be lost on the meta device, left behind by a load, or rounded by a cast; eager calls keep them in a memo per device.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from draftc.runtime.rope_scaling import Scaling, frequencies_at_length, scaled_frequencies

Rope = tuple[Tensor, Tensor]

frequency_memo: dict[tuple[object, torch.device], tuple[Tensor, Tensor | None, float]] = {}


class Turn(NamedTuple):
    """What a rope table depends on. Equal turns share one table.

    `style` is "half" (channels i and i + dim/2 are a pair) or "interleaved" (2i and 2i+1). `dim` is the even number of
    leading channels that the table covers; with scaling `proportional` it is the whole head, and the scaling's
    `partial_rotary_factor` says which share of its pairs turns. `scaling` is None or transformers' rope parameters
    without theta as pairs, lists as tuples: `(("factor", 2.0), ("rope_type", "linear"))`.
    """

    style: str
    dim: int
    theta: float
    scaling: Scaling | None = None
    max_position_embeddings: int = 0


def base_frequencies(turn: Turn, device: torch.device) -> tuple[Tensor, Tensor | None, float]:
    """`[dim / 2]` fp32 radians per position, longrope's second set or None, and the factor on cos and sin."""
    if turn.scaling is not None:
        return scaled_frequencies(turn.dim, turn.theta, turn.scaling, turn.max_position_embeddings, device)
    exponents = torch.arange(0, turn.dim, 2, device=device, dtype=torch.float32) / turn.dim
    return 1.0 / turn.theta**exponents, None, 1.0


def kept_frequencies(turn: Turn, device: torch.device) -> tuple[Tensor, Tensor | None, float]:
    """`base_frequencies` from the memo. A compiled region computes them: its graph must own what it reads."""
    if torch.compiler.is_compiling():
        return base_frequencies(turn, device)
    key = (turn, device)
    if key not in frequency_memo:
        with torch.inference_mode(False):
            frequencies = base_frequencies(turn, device)
        # Fake and functional tensors belong to one trace and must not outlive it.
        if type(frequencies[0]) is not Tensor:
            return frequencies
        frequency_memo[key] = frequencies
    return frequency_memo[key]


def call_frequencies(turn: Turn, positions: Tensor) -> tuple[Tensor, float]:
    """`[dim / 2]` fp32 radians per position for this call, and the factor on cos and sin.

    `dynamic` and `longrope` depend on a length: the largest of `positions` plus one, over the whole batch, as in
    transformers. A call is judged by itself, where transformers' `dynamic` modules also remember their longest call;
    the two agree while the length of the calls does not shrink, as in one generation.
    """
    frequencies, beyond, factor = kept_frequencies(turn, positions.device)
    keys = dict(turn.scaling or ())
    if beyond is not None:
        length = positions.max() + 1
        return torch.where(length > keys["original_max_position_embeddings"], beyond, frequencies), factor
    if turn.scaling is not None and keys["rope_type"] == "dynamic":
        length = positions.max() + 1
        fields = turn.dim, turn.theta, turn.scaling, turn.max_position_embeddings
        return frequencies_at_length(*fields, length), factor
    return frequencies, factor


def rope_table(turn: Turn, positions: Tensor) -> Rope:
    """Cosines and sines of every row, times the scaling's attention factor.

    `positions` `[B, T]` are integers, context rows before block rows. Returns `(cos, sin)`, each `[B, T, turn.dim]`
    fp32; channels i and i + dim/2 hold the angle of pair i for both styles. Raises `RopeScalingError` when the scaling
    names no type that transformers knows, or lacks one of its keys.
    """
    frequencies, factor = call_frequencies(turn, positions)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * factor, angles.sin() * factor


def turn_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + r/2) of `x [B, h, T, r]` by `cos`, `sin` `[B, 1, T, r]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def turn_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (2i, 2i + 1) of `x [B, h, T, r]` in place by the first halves of `cos`, `sin` `[B, 1, T, r]`."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos = cos[..., : even.shape[-1]]
    sin = sin[..., : even.shape[-1]]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def turn_rows(x: Tensor, rope: Rope, turn_pairs: Callable[..., Tensor]) -> Tensor:
    """Turn the leading r channels of `x [B, h, T, d]` by the trailing T rows of the table; the rest pass.

    Computed in fp32 at least, whatever a mixed-precision policy made of `x` and the table; the dtype of `x` returns.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table[:, None, -x.shape[-2] :].to(wide) for table in rope)
    width = cos.shape[-1]
    turned = turn_pairs(x[..., :width].to(wide), cos, sin).to(x.dtype)
    if width == x.shape[-1]:
        return turned
    return torch.cat([turned, x[..., width:]], dim=-1)


def rotate_half(q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions, channels i and i + r/2 as a pair (GPT-NeoX, Llama, Qwen).

    `q` `[B, h, Q, d]` are the block's rows and take the trailing Q rows of the table, `k` `[B, g, C+Q, d]` takes all.
    `rope` is `(cos, sin)`, each `[B, C+Q, r]` with r <= d; the leading r channels turn. Dtypes stay what they were.
    """
    return turn_rows(q, rope, turn_half), turn_rows(k, rope, turn_half)


def rotate_interleaved(q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions, channels 2i and 2i + 1 as a pair (RoFormer, DeepSeek).

    Pairs stay where they are; transformers' DeepSeek code moves even channels before odd ones first, which permutes
    the channels of queries and keys alike and so leaves their scores the same.

    `q` `[B, h, Q, d]` are the block's rows and take the trailing Q rows of the table, `k` `[B, g, C+Q, d]` takes all.
    `rope` is `(cos, sin)`, each `[B, C+Q, r]` with r <= d; the leading r channels turn. Dtypes stay what they were.
    """
    return turn_rows(q, rope, turn_interleaved), turn_rows(k, rope, turn_interleaved)
