"""The decoder layer with plain residual sums."""

from transformers.modeling_layers import GradientCheckpointingLayer

from draftc.runtime.residual.sums import PlainResidual


class DecoderLayer(GradientCheckpointingLayer, PlainResidual):
    """`PlainResidual` as a unit of gradient checkpointing, which is what a model holds."""
