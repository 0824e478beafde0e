"""The typed layout: the only intermediate form above the graph. Frozen, complete, with nothing implied."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from draftc.spec.span import Origin

RopeStyle = Literal["half", "interleaved"]
RopeType = Literal["linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]
GateForm = Literal["none", "full", "low_rank"]
Memory = Literal["keys", "state", "none"]
DType = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Frequency scaling, with the keys and the meaning of transformers' function for `rope_type`.

    `parameters` holds the keys of that type that are stated or have a default, in the schema's order.
    """

    rope_type: RopeType
    parameters: tuple[tuple[str, float | int | bool | tuple[float, ...]], ...]

    def get(self, name: str) -> float | int | bool | tuple[float, ...] | None:
        """Return the parameter `name`, or None when it is not stated."""
        return dict(self.parameters).get(name)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: which channels pair up, base of the frequencies, rotated fraction of a head, scaling."""

    style: RopeStyle
    rope_theta: float
    partial_rotary_factor: float = 1.0
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention; equal head counts are what the language calls mha. No window: full attention."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: Rope | None
    qk_norm: bool
    attention_bias: bool
    output_gate: Literal["none", "full"]
    sliding_window: int | None
    is_causal: bool

    @property
    def kind(self) -> Literal["gqa", "mha"]:
        """The word of the language for this shape."""
        return "mha" if self.num_attention_heads == self.num_key_value_heads else "gqa"

    sees_context = True
    memory: ClassVar[Memory] = "keys"


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: keys and values from one compressed latent; one shared rotated key."""

    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float
    rope: Rope | None
    attention_bias: bool
    output_gate: Literal["none", "full"]
    sliding_window: int | None
    is_causal: bool

    kind = "mla"
    sees_context = True
    memory: ClassVar[Memory] = "keys"


@dataclass(frozen=True, slots=True)
class Kda:
    """Kimi delta attention. Without `gate_lower_bound` the gate is softplus; `scan` reads context as a state."""

    num_heads: int
    head_dim: int
    short_conv_kernel_size: int
    gate_lower_bound: float | None
    output_gate: Literal["full", "low_rank"]
    context_state: Literal["reset", "scan"]

    kind = "kda"
    rope = None
    sliding_window = None
    is_causal = False

    @property
    def sees_context(self) -> bool:
        """Whether the target's context enters through this layer."""
        return self.context_state == "scan"

    @property
    def memory(self) -> Memory:
        """What this layer keeps between decoding steps."""
        return "state" if self.context_state == "scan" else "none"


AttentionSpec = Gqa | Mla | Kda


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated MLP: `hidden_act(gate_proj x) * up_proj x`, then `down_proj`."""

    intermediate_size: int
    hidden_act: Literal["silu", "gelu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer of the stack: its place, the name of its attention, and what it is made of."""

    index: int
    name: str
    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class Dflash:
    """Slot j predicts the token at anchor + j; slot 0 is the anchor itself. No heads."""

    name = "dflash"


@dataclass(frozen=True, slots=True)
class Dflash2:
    """DFlash with grouped dynamic convolutions and a low-rank candidate selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    name = "dflash2"


@dataclass(frozen=True, slots=True)
class Domino:
    """DFlash with a GRU over the drafted prefix that corrects the logits."""

    gru_hidden_dim: int
    emb_dim: int
    pure_draft_prefix_len: int
    shift_label: bool

    name = "domino"


@dataclass(frozen=True, slots=True)
class Dspark:
    """DFlash with a Markov head and a confidence head; None where the language leaves a key out."""

    sample_from_anchor: bool
    markov_rank: int
    markov_head_type: Literal["vanilla", "gated", "rnn"] | None
    enable_confidence_head: bool
    confidence_head_with_markov: bool | None

    name = "dspark"


Family = Dflash | Dflash2 | Domino | Dspark


@dataclass(frozen=True, slots=True)
class Target:
    """Facts of the model that the draft serves; None where its source states nothing."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    intermediate_size: int | None = None
    max_position_embeddings: int | None = None
    rms_norm_eps: float | None = None
    dtype: DType = "bfloat16"
    hc_mult: int = 1
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    special_token_ids: tuple[tuple[str, int], ...] = ()
    model_type: str | None = None
    name_or_path: str | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """An engine that the draft is to be served on."""

    name: str
    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole draft, every value resolved. `origins` maps JSON pointers (`/hidden_size`) to where values came from."""

    name: str
    description: str
    family: Family
    target: Target
    target_layer_ids: tuple[int, ...]
    final_tap: Literal["pre_norm", "post_norm"] | None
    target_stream_contraction: Literal["mean", "none"] | None
    block_size: int
    mask_token_id: int
    hidden_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    draft_vocab_size: int
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    attention_dropout: float
    initializer_range: float
    dtype: DType
    layers: tuple[LayerSpec, ...]
    serve_on: tuple[Consumer, ...] = ()
    allow: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False, hash=False)

    @property
    def tap_width(self) -> int:
        """Width of one captured target state."""
        streams = self.target.hc_mult if self.target_stream_contraction == "none" else 1
        return self.target.hidden_size * streams

    @property
    def context_width(self) -> int:
        """Width of the concatenated taps, the input of `fc`."""
        return self.tap_width * len(self.target_layer_ids)

    @property
    def owns_head(self) -> bool:
        """Whether the draft has an output head of its own (reduced vocabulary)."""
        return self.draft_vocab_size < self.target.vocab_size

    @property
    def attentions(self) -> dict[str, AttentionSpec]:
        """The attentions of the stack by name, in order of first use."""
        return {layer.name: layer.attention for layer in self.layers}
