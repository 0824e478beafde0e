"""From the layers of a layout to reference modules: the only module that knows both a spec and a runtime class.

Runtime constructors take plain numbers. A runtime module is imported when a layout uses it, and on the compile path
none of them brings in `transformers.modeling_utils`, which takes longer to import than everything else together.
"""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, assert_never

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from draftc.compiler.families import family_form
from draftc.compiler.sources import Symbol
from draftc.spec.layout import AttentionSpec, Dflash2, Gqa, Kda, LayerSpec, Layout, Memory, Mla, MlpSpec, Rope

if TYPE_CHECKING:
    from draftc.runtime.draft import DraftModel
    from draftc.runtime.residual.sums import PlainResidual
    from draftc.runtime.rope import Turn


# Methods by which constructors of draftc.runtime draw and scale values.
FILLS = frozenset({"exp", "log", "log_", "mul", "mul_", "normal_", "uniform_"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What `DraftModel` must know of a layer and no graph reads: they become class attributes of the layer class."""

    window: int | None
    is_causal: bool
    turn: "Turn | None"
    memory: Memory


@dataclass(frozen=True, slots=True)
class Part:
    """One layer of the stack: its spec, its module on the meta device (equal layers share it), and its facts."""

    spec: LayerSpec
    module: nn.Module
    facts: Facts


def build(layout: Layout) -> tuple[Part, ...]:
    """Build the layers of `layout` on the meta device, each distinct one once; no memory is taken."""
    modules: dict[tuple[str, MlpSpec], nn.Module] = {}
    with torch.device("meta"), _Unfilled():
        for spec in layout.layers:
            key = (spec.name, spec.mlp)
            modules[key] = modules.get(key) or decoder_layer(spec, layout)
    return tuple(Part(spec, modules[spec.name, spec.mlp], facts_of(spec.attention, layout)) for spec in layout.layers)


class _Unfilled(TorchFunctionMode):
    """Constructors fill their parameters; on meta there is nothing to fill, and meta kernels are slow to import.

    Random tensors are left empty, and what draws or scales values returns the tensor that it was given.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.rand, torch.randn):
            return torch.empty(*args, **(kwargs or {}))
        if getattr(func, "__module__", None) == "torch.nn.init" or func.__name__ in FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def reference(layout: Layout) -> "DraftModel":
    """Build the reference form of the whole draft on the default device, weights drawn in float32.

    It runs the plainest backends, `eager` and `kda_recurrent`, in both phases: what bundles are compared with.
    """
    from draftc.compiler.config_json import config_values

    form = family_form(layout)
    names = tuple("kda_recurrent" if isinstance(spec.attention, Kda) else "eager" for spec in layout.layers)
    facts = {
        "layer_classes": tuple(partial(_reference_layer, spec, layout) for spec in layout.layers),
        "backends": {(phase, device): names for phase in ("training", "decoding") for device in ("cpu", "cuda")},
    }
    values: dict[str, Any] = config_values(layout)
    parts = {name: _runtime(part) for name, part in form.parts.items()}
    model_class = type("ReferenceDraft", (_runtime(form.model),), facts | parts | _scan_plan(layout))
    model: DraftModel = model_class(_runtime(form.config)(**values))
    return model


def _scan_plan(layout: Layout) -> dict[str, Any]:
    """How recurrent layers that read context share one plan; empty without such layers."""
    if all(spec.attention.memory != "state" for spec in layout.layers):
        return {}
    from draftc.runtime.kda.states import plan_states

    return {"plan_scan": staticmethod(plan_states)}


def _runtime(symbol: Symbol) -> Any:
    """The class of `runtime/` that `symbol` names."""
    return getattr(import_module(symbol.module), symbol.name)


def _reference_layer(spec: LayerSpec, layout: Layout) -> "PlainResidual":
    """One layer that can be checkpointed and knows the facts that `DraftModel` reads."""
    layer = _layer_of(_checkpointed_layer(layout), spec, layout)
    facts = facts_of(spec.attention, layout)
    layer.window, layer.is_causal, layer.turn, layer.memory = facts.window, facts.is_causal, facts.turn, facts.memory
    return layer


def _checkpointed_layer(layout: Layout) -> "type[PlainResidual]":
    """The class of the layers that a model holds."""
    if isinstance(layout.family, Dflash2):
        from draftc.runtime.residual.dflash2 import ConvolvedDecoderLayer

        return ConvolvedDecoderLayer
    from draftc.runtime.residual.plain import DecoderLayer

    return DecoderLayer


def _traced_layer(layout: Layout) -> "type[PlainResidual]":
    """What layers compute, in a class that needs nothing of transformers' models."""
    if isinstance(layout.family, Dflash2):
        from draftc.runtime.residual.convolved import ConvolvedResidual

        return ConvolvedResidual
    from draftc.runtime.residual.sums import PlainResidual

    return PlainResidual


def decoder_layer(spec: LayerSpec, layout: Layout) -> "PlainResidual":
    """Build one layer as it is traced, on the default device."""
    return _layer_of(_traced_layer(layout), spec, layout)


def _layer_of(residual: "Callable[..., PlainResidual]", spec: LayerSpec, layout: Layout) -> "PlainResidual":
    """Build a layer of class `residual` around its attention and feed-forward part."""
    from draftc.runtime.mlp import GatedMLP

    attention = attention_module(spec.attention, layout)
    mlp = GatedMLP(layout.hidden_size, spec.mlp.intermediate_size, spec.mlp.hidden_act)
    return residual(layout.hidden_size, layout.rms_norm_eps, attention, mlp, **_convolution(layout))


def _convolution(layout: Layout) -> dict[str, int]:
    """Arguments of the convolutions around sublayers, where the family has them."""
    if not isinstance(layout.family, Dflash2):
        return {}
    family = layout.family
    return {
        "conv_kernel_size": family.conv_kernel_size,
        "conv_group_size": family.conv_group_size,
        "block_size": layout.block_size,
    }


def attention_module(spec: AttentionSpec, layout: Layout) -> nn.Module:
    """Build the reference attention of `spec`."""
    match spec:
        case Gqa():
            return _gqa(spec, layout)
        case Mla():
            return _mla(spec, layout)
        case Kda():
            return _kda(spec, layout)
        case _:
            assert_never(spec)


def _gqa(spec: Gqa, layout: Layout) -> nn.Module:
    from draftc.runtime.attention.gqa import GroupedQueryAttention

    return GroupedQueryAttention(
        hidden_size=layout.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_key_value_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=layout.rms_norm_eps,
        rope_style=spec.rope.style if spec.rope else None,
        qk_norm=spec.qk_norm,
        attention_bias=spec.attention_bias,
        output_gate=spec.output_gate == "full",
    )


def _mla(spec: Mla, layout: Layout) -> nn.Module:
    from draftc.runtime.attention.mla import LatentAttention

    return LatentAttention(
        hidden_size=layout.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        q_lora_rank=spec.q_lora_rank,
        kv_lora_rank=spec.kv_lora_rank,
        qk_nope_head_dim=spec.qk_nope_head_dim,
        qk_rope_head_dim=spec.qk_rope_head_dim,
        v_head_dim=spec.v_head_dim,
        rms_norm_eps=spec.rms_norm_eps,
        rope_style=spec.rope.style if spec.rope else None,
        softmax_scale=latent_scale(spec),
        attention_bias=spec.attention_bias,
        output_gate=spec.output_gate == "full",
    )


def _kda(spec: Kda, layout: Layout) -> nn.Module:
    return _kda_class(spec)(
        hidden_size=layout.hidden_size,
        num_heads=spec.num_heads,
        head_dim=spec.head_dim,
        short_conv_kernel_size=spec.short_conv_kernel_size,
        gate_lower_bound=spec.gate_lower_bound,
        full_gate=spec.output_gate == "full",
        rms_norm_eps=layout.rms_norm_eps,
        block_size=layout.block_size,
    )


def _kda_class(spec: Kda) -> Callable[..., nn.Module]:
    if spec.context_state == "reset":
        from draftc.runtime.attention.kda_reset import DeltaAttention

        return DeltaAttention
    from draftc.runtime.attention.kda_scan import ScanDeltaAttention

    return ScanDeltaAttention


def decoding_form(attention: nn.Module) -> nn.Module | None:
    """Return the form in which `attention` may decode, on the same parameters; None when it has but one form."""
    from draftc.runtime.attention.mla import AbsorbedLatentAttention, LatentAttention

    if type(attention) is not LatentAttention:
        return None
    form = copy(attention)
    form.__class__ = AbsorbedLatentAttention
    return form


def latent_scale(spec: Mla) -> float:
    """Softmax scale of mla: d^-1/2 for queries of d channels, times (0.1 m ln(factor) + 1)^2 under yarn.

    m is `mscale_all_dim`; DeepSeek-V3 applies it to the scale on top of the factor that YaRN puts on cos and sin.
    """
    scale: float = (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5
    scaling = spec.rope.scaling if spec.rope else None
    m = scaling.get("mscale_all_dim") if scaling else None
    factor = scaling.get("factor") if scaling else None
    if not isinstance(m, int | float) or not isinstance(factor, int | float) or factor <= 1:
        return scale
    return scale * (0.1 * m * math.log(factor) + 1.0) ** 2


def facts_of(spec: AttentionSpec, layout: Layout) -> Facts:
    """Return what the model must know of a layer with this attention."""
    return Facts(spec.sliding_window, spec.is_causal, turn_of(spec, layout), spec.memory)


def turn_of(spec: AttentionSpec, layout: Layout) -> "Turn | None":
    """Return the rotary table that the attention needs, None without rotation."""
    match spec:
        case Gqa(rope=Rope() as rope):
            return _turn(rope, spec.head_dim, layout)
        case Mla(rope=Rope() as rope):
            return _turn(rope, spec.qk_rope_head_dim, layout)
        case _:
            return None


def _turn(rope: Rope, width: int, layout: Layout) -> "Turn":
    """One table for `width` channels; under `proportional` the pairs run over all of them and only a share turns."""
    from draftc.runtime.rope import Turn

    whole = rope.scaling is not None and rope.scaling.rope_type == "proportional"
    # DC272 lets pass only factors whose product is a whole number, up to rounding of the product.
    turned = width if whole else round(width * rope.partial_rotary_factor)
    return Turn(rope.style, turned, rope.rope_theta, _scaling(rope), layout.max_position_embeddings)


def _scaling(rope: Rope) -> tuple[tuple[str, object], ...] | None:
    if rope.scaling is None:
        return None
    pairs: dict[str, object] = {**dict(rope.scaling.parameters), "rope_type": rope.scaling.rope_type}
    if rope.scaling.rope_type == "proportional":
        pairs["partial_rotary_factor"] = rope.partial_rotary_factor
    return tuple(sorted(pairs.items()))
