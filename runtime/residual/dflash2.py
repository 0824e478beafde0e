"""The decoder layer of DFlash2."""

from transformers.modeling_layers import GradientCheckpointingLayer

from draftc.runtime.residual.convolved import ConvolvedResidual


class ConvolvedDecoderLayer(GradientCheckpointingLayer, ConvolvedResidual):
    """`ConvolvedResidual` as a unit of gradient checkpointing, which is what a model holds."""
