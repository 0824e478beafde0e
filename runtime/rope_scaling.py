"""Scaled rope frequencies as transformers computes them: linear, dynamic, yarn, longrope, llama3, proportional."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Scaling = tuple[tuple[str, Any], ...]


class RopeScalingError(ValueError):
    """A rope scaling that no function of transformers can compute."""


class RopeFacts:
    """What transformers' rope functions read of a configuration, for one head of `dim` turned channels."""

    def __init__(self, dim: int, theta: float, scaling: Scaling, longest: int) -> None:
        self.head_dim = dim
        self.hidden_size = dim
        self.num_attention_heads = 1
        self.max_position_embeddings = longest
        self.rope_parameters = {**dict(scaling), "rope_theta": theta}
        # An attribute, not a method: transformers calls it, and a bundle keeps only methods that its own code calls.
        self.standardize_rope_params = nothing_to_do


def nothing_to_do() -> None:
    """Leave parameters as they are: they have the form that transformers 5 reads."""


def init_frequencies(facts: RopeFacts, device: torch.device, length: Tensor | int | None) -> tuple[Tensor, float]:
    """Call transformers' function of the scaling's type; `length` is what it calls `seq_len`.

    Returns `[dim / 2]` fp32 on `device` and the factor on cos and sin. Raises `RopeScalingError` when the type is
    unknown or a key that it needs is missing.
    """
    kind = facts.rope_parameters.get("rope_type")
    if kind not in ROPE_INIT_FUNCTIONS:
        raise RopeScalingError(f"rope_type {kind!r} is none of {', '.join(sorted(ROPE_INIT_FUNCTIONS))}")
    if kind != "proportional" and facts.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise RopeScalingError(f"partial_rotary_factor belongs to proportional scaling; {kind} turns all its channels")
    try:
        return ROPE_INIT_FUNCTIONS[kind](facts, device, seq_len=length)
    except KeyError as key:
        raise RopeScalingError(f"rope scaling {kind} needs the key {key.args[0]}") from key


def scaled_frequencies(
    dim: int,
    theta: float,
    scaling: Scaling,
    max_position_embeddings: int,
    device: torch.device,
) -> tuple[Tensor, Tensor | None, float]:
    """Frequencies below the original length, those beyond it where they differ, and the factor on cos and sin.

    Returns `[dim / 2]` fp32; for longrope a second `[dim / 2]` from the long factors, otherwise None; a plain number.
    Raises `RopeScalingError` as `init_frequencies` does.
    """
    facts = RopeFacts(dim, theta, scaling, max_position_embeddings)
    frequencies, factor = init_frequencies(facts, device, None)
    if facts.rope_parameters["rope_type"] != "longrope":
        return frequencies, None, factor
    beyond = facts.rope_parameters["original_max_position_embeddings"] + 1
    return frequencies, init_frequencies(facts, device, beyond)[0], factor


def frequencies_at_length(
    dim: int,
    theta: float,
    scaling: Scaling,
    max_position_embeddings: int,
    length: Tensor,
) -> Tensor:
    """Frequencies of dynamic scaling (NTK-aware) for a call that reaches `length` positions, a 0-d integer tensor.

    Below `max_position_embeddings` they are the unscaled ones. Returns `[dim / 2]` fp32 on the device of `length`.
    """
    facts = RopeFacts(dim, theta, scaling, max_position_embeddings)
    return init_frequencies(facts, length.device, length)[0]
