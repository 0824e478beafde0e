"""Small dense drafts in the reference form, the one that the compiler builds from a layout, made by hand."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftc.runtime.attention.gqa import GroupedQueryAttention
from draftc.runtime.attention.mla import AbsorbedLatentAttention, LatentAttention
from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.mlp import GatedMLP
from draftc.runtime.residual.plain import DecoderLayer
from draftc.runtime.rope import Turn

EPS = 1e-6


@dataclass(frozen=True)
class Dense:
    """Facts of one dense layer."""

    window: int | None = None
    is_causal: bool = False
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    rope_style: str | None = "half"
    rotated: int = 8
    qk_norm: bool = True
    bias: bool = False
    gate: bool = False
    hidden_act: str = "silu"

    def layer(self, hidden_size: int) -> DecoderLayer:
        attention = GroupedQueryAttention(
            hidden_size,
            self.heads,
            self.kv_heads,
            self.head_dim,
            EPS,
            self.rope_style,
            self.qk_norm,
            self.bias,
            self.gate,
        )
        layer = DecoderLayer(hidden_size, EPS, attention, GatedMLP(hidden_size, 48, self.hidden_act))
        layer.window, layer.is_causal = self.window, self.is_causal
        layer.turn = None if self.rope_style is None else Turn(self.rope_style, self.rotated, 10000.0)
        return layer


FULL = Dense()
SLIDING = Dense(window=5, is_causal=True)
BOTH_WAYS = Dense(window=5)


def reference(*makers: Callable[[], DecoderLayer], backend: str = "sdpa") -> type[DraftModel]:
    """A draft class over `makers`, one per layer, every one of them run by `backend`."""
    names = (backend,) * len(makers)
    table = {("training", "cpu"): names, ("decoding", "cpu"): names}
    return type("ReferenceDraft", (DraftModel,), {"layer_classes": makers, "backends": table})


def config_of(*layers: Dense, hidden_size: int = 32, **fields: object) -> DraftConfig:
    windows = [layer.window for layer in layers if layer.window is not None]
    facts = {
        "hidden_size": hidden_size,
        "target_hidden_size": hidden_size,
        "num_hidden_layers": len(layers),
        "vocab_size": 64,
        "rms_norm_eps": EPS,
        "block_size": 4,
        "mask_token_id": 63,
        "target_layer_ids": [0, 2],
        "layer_types": ["full_attention" if layer.window is None else "sliding_attention" for layer in layers],
        "sliding_window": max(windows, default=None),
        "max_position_embeddings": 256,
    }
    return DraftConfig(**{**facts, **fields})


def dense_draft(*layers: Dense, backend: str = "sdpa", seed: int = 0, **fields: object) -> DraftModel:
    """A float64 draft of `layers` with random weights, norms and biases included."""
    torch.manual_seed(seed)
    config = config_of(*layers, **fields)
    makers = [lambda layer=layer: layer.layer(config.hidden_size) for layer in layers]
    return scrambled(reference(*makers, backend=backend)(config).double().eval())


def scrambled(model: torch.nn.Module) -> torch.nn.Module:
    """Draw every parameter anew, so that no norm is all ones and no bias all zeros."""
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
    return model


def streams(draft: DraftModel, rows: int, blocks: int = 1, batch: int = 1, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random `noise_embeds [B, Q, H_target]` and `context_hidden_states [B, C, T·W]` for `draft`, float64."""
    generator = torch.Generator().manual_seed(seed)
    config = draft.config
    noise = torch.randn(
        batch, blocks * config.block_size, config.target_hidden_size, generator=generator, dtype=torch.float64
    )
    taps = torch.randn(batch, rows, config.context_width, generator=generator, dtype=torch.float64)
    return noise, taps


def absorbed_twin(attention: LatentAttention) -> AbsorbedLatentAttention:
    """The absorbed form of `attention` beside it, on the same parameters."""
    twin = copy.copy(attention)
    twin.__class__ = AbsorbedLatentAttention
    return twin


def gradients(output: Tensor, model: torch.nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Gradients of a fixed random projection of `output`, by parameter name and by number of the input."""
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=output.dtype)
    named = {
        **{n: p for n, p in model.named_parameters() if p.requires_grad},
        **{str(i): value for i, value in enumerate(inputs)},
    }
    found = torch.autograd.grad((output * weight).sum(), list(named.values()), allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}
