"""The model around the layers of a draft: what goes in, what every layer receives, what comes out."""

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput

from draftc.runtime.config import DraftConfig
from draftc.runtime.forms import DecodingForms
from draftc.runtime.heads.drafting import Drafting
from draftc.runtime.memory import Memory, memories
from draftc.runtime.norm import RMSNorm
from draftc.runtime.rope import Turn, rope_table
from draftc.runtime.rows import DraftInputError, Rows, decoding_rows, fitting, require_gaps, training_rows
from draftc.runtime.visibility import View

# Names of z-lab's, SpecForge's and earlier transformers' calls, and what they are called here.
CALL_NAMES = {
    "noise_embedding": "noise_embeds",
    "target_hidden": "context_hidden_states",
    "past_key_values": "cache",
    "anchor_positions": "anchors",
}
# Arguments of the same calls that say nothing a draft does not know: causality is a fact of each layer.
SILENT_NAMES = ("use_cache", "return_dict", "is_causal", "cache_position")
# transformers' words for attention, and ours.
ATTENTION_WORDS = {"flex_attention": "flex", "flash_attention_2": "flash", "flash_attention_3": "flash"}


# bfloat16 steps of these would move every later decay.
FP32_PARTS = ["A_log", "dt_bias"]


def named_inputs(given: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge arguments under other libraries' names into `given`; raise `TypeError` for an unknown or a doubled name."""
    merged = dict(given)
    for name, value in others.items():
        ours = CALL_NAMES.get(name)
        if ours is None and name not in SILENT_NAMES:
            raise TypeError(f"a draft takes no argument {name!r}; besides its own it knows {', '.join(CALL_NAMES)}")
        if ours is None or value is None:
            continue
        if merged[ours] is not None:
            raise TypeError(f"{ours} was given twice, once as {name}")
        merged[ours] = value
    return merged


def forced_names(wish: str, available: tuple[str, ...], source: str) -> tuple[str, ...]:
    """The backends that `wish`, names joined by commas, asks for; raise `ValueError` for one that is not there."""
    names = tuple(ATTENTION_WORDS.get(name.strip(), name.strip()) for name in wish.split(","))
    for name in names:
        if name not in available:
            raise ValueError(f"{source} asks for backend {name!r}; this draft has {', '.join(available)}")
    return names


def forced_over(chosen: str, forced: tuple[str, ...]) -> str:
    """The forced backend of the same operation as `chosen`, else `chosen`."""
    is_kda = chosen.startswith("kda_")
    return next((name for name in forced if name.startswith("kda_") == is_kda), chosen)


class DraftModel(Drafting, DecodingForms, PreTrainedModel):
    """A stack of draft layers between the target's embeddings and its output head.

    A subclass names its layers (`layer_classes`, one callable without arguments per layer) and, for each phase
    (`training`, `decoding`) and device type, the backend of each layer (`backends`). `available` names further backends
    that its operations can run. Overrides, strongest first: the environment's `DRAFTC_BACKEND` (read when the model is
    built), `attn_implementation`. A stack whose recurrent layers read context sets `plan_scan` to `plan_states`, and
    its layers share one plan per call; otherwise each makes its own. Attentions with a form of their own for decoding
    (`decoding_forms`) take it when a decoding call comes, and the other one back when training does.
    """

    config_class = DraftConfig
    config: Any
    layer_classes: ClassVar[tuple[Callable[[], nn.Module], ...]] = ()
    backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {}
    available: ClassVar[tuple[str, ...]] = ()
    plan_scan: ClassVar[Callable[..., tuple[Any, ...]] | None] = None

    main_input_name = "noise_embeds"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _keep_in_fp32_modules_strict = FP32_PARTS

    def __init__(self, config: DraftConfig) -> None:
        asked = config._attn_implementation
        super().__init__(config)
        # transformers writes its default here; None keeps an explicit choice apart from it.
        config._attn_implementation_internal = asked
        width, target_width = config.hidden_size, config.target_hidden_size
        self.owns_head = config.draft_vocab_size < config.vocab_size
        self.input_proj = nn.Linear(target_width, width, bias=False) if width != target_width else None
        self.fc = nn.Linear(config.context_width, width, bias=False)
        self.hidden_norm = RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList([make() for make in self.layer_classes])
        self.norm = RMSNorm(width, config.rms_norm_eps)
        projects = width != target_width and not self.owns_head
        self.output_proj = nn.Linear(width, target_width, bias=False) if projects else None
        if self.owns_head:
            self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.add_heads()
        self._no_split_modules = [type(layer).__name__ for layer in self.layers]
        facts: list[Any] = list(self.layers)
        self.memory_kinds: tuple[str, ...] = tuple(layer.memory for layer in facts)
        self.turns: tuple[Turn, ...] = tuple(dict.fromkeys(layer.turn for layer in facts if layer.turn is not None))
        self.turn_numbers = tuple(None if layer.turn is None else self.turns.index(layer.turn) for layer in facts)
        self.counting_layer = next((i for i, kind in enumerate(self.memory_kinds) if kind != "none"), None)
        self.environment_wish = os.environ.get("DRAFTC_BACKEND")
        self.layer_backends("training", "cpu")
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give `module` its first weights: norms one, biases zero, matrices normal, KDA's decay rates log U(1, 16).

        What was loaded stays, which `transformers.initialization` sees to. Maps of a reduced vocabulary start empty.
        """
        for name, parameter in module.named_parameters(recurse=False):
            if name == "A_log":
                init.copy_(parameter, torch.empty_like(parameter).uniform_(1, 16).log_())
            elif name in ("bias", "dt_bias"):
                init.zeros_(parameter)
            elif parameter.ndim == 1:
                init.ones_(parameter)
            else:
                init.normal_(parameter, std=self.config.initializer_range)
        for buffer in module.buffers(recurse=False):
            init.zeros_(buffer)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # transformers looks for its own dispatcher in the source; this model has another.
        return True

    def layer_backends(self, phase: str, device: str) -> tuple[str, ...]:
        """The backend of every layer in `phase` on `device`, overrides applied.

        Raises `ValueError` when an override names a backend that is not there.
        """
        chosen = self.backends.get((phase, device)) or self.backends[phase, "cpu"]
        named = [name for names in self.backends.values() for name in names]
        available = tuple(dict.fromkeys([*named, "eager", "sdpa", *self.available]))
        if self.environment_wish:
            forced = forced_names(self.environment_wish, available, "DRAFTC_BACKEND")
        elif self.config._attn_implementation:
            forced = forced_names(self.config._attn_implementation, available, "attn_implementation")
        else:
            return chosen
        return tuple(forced_over(name, forced) for name in chosen)

    def forward(
        self,
        noise_embeds: Tensor | None = None,
        context_hidden_states: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        anchors: Tensor | None = None,
        starts: Tensor | None = None,
        **others: object,
    ) -> BaseModelOutput:
        """Run blocks against the target's context: many blocks to train on, or the next one to decode.

        Args:
            noise_embeds: `[B, Q, H_target]` target embeddings of the blocks: the anchor's token, then mask tokens.
            context_hidden_states: `[B, C, T·W]` the taps of the target side by side, rows not given before.
            position_ids: `[B, C+Q]` positions to rotate by, context first; by default they follow from the rest.
            attention_mask: `[B, P+C+Q]` while decoding, `[B, C]` while training; zero rows are padding.
            cache: what earlier steps left, P rows of context; None to decode without, and while training.
            anchors: `[B, N]` while training: the context row at which each block stands, -1 for a dropped one; a block
                sees the rows before its anchor. None while decoding: one block after the last row.
            starts: `[B, N]` the first context row of each block's document, where several are packed into one row;
                `document_gap` rows of zeros stand between two of them.
            others: the same things under the names of z-lab's and SpecForge's classes. `noise_embedding` comes scaled
                already, as z-lab's loop gives it; `noise_embeds` is scaled here by `input_embedding_scale`.

        Returns:
            `last_hidden_state` `[B, Q, H_target]` (`[B, Q, H]` when the draft owns its head), the final norm included;
            `hidden_states` holds what the norm returned, `[B, Q, H]`, which heads read.

        Raises:
            DraftInputError: shapes that do not fit each other or the draft, or a cache where none can be used.
            TypeError: an argument that no draft takes.

        """
        own = {"noise_embeds": noise_embeds, "context_hidden_states": context_hidden_states, "cache": cache}
        given = named_inputs({**own, "anchors": anchors}, others)
        anchors, cache = given["anchors"], given["cache"]
        block, context = self.enter(given["noise_embeds"], given["context_hidden_states"], "noise_embedding" in others)
        self.require_replayable(cache, anchors)
        layer_memories = memories(cache, self.memory_kinds)
        rows = self.place(block, context, anchors, starts, layer_memories, attention_mask)
        positions = rows.positions if position_ids is None else fitting("position_ids", position_ids, rows.positions)
        if rows.kept is not None and "state" in self.memory_kinds:
            context = context * rows.kept[..., None]
        tables = [rope_table(turn, positions) for turn in self.turns]
        phase, device = "decoding" if anchors is None else "training", context.device.type
        names = self.layer_backends(phase, device)
        self.settle_forms(phase, device, names)
        views = self.layer_views(rows, layer_memories, context, phase, names)
        for layer, number, view, memory in zip(self.layers, self.turn_numbers, views, layer_memories, strict=True):
            rope = None if number is None else tables[number]
            block = layer(block, context, rows.anchors, rope, view, memory)
        hidden = self.norm(block)
        return BaseModelOutput(last_hidden_state=self.outgoing(hidden), hidden_states=(hidden,))

    @property
    def document_gap(self) -> int:
        """Empty rows between documents of one row: as many as the convolutions of layers that scan reach back."""
        facts: list[Any] = list(self.layers)
        scanning = [layer.self_attn for layer in facts if layer.memory == "state"]
        return max((each.k_conv1d.weight.shape[1] - 1 for each in scanning), default=0)

    def place(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor | None,
        starts: Tensor | None,
        layer_memories: tuple[Memory, ...],
        attention_mask: Tensor | None,
    ) -> Rows:
        """Where the rows of this call stand, after those that the memories hold."""
        if starts is not None and "state" in self.memory_kinds:
            require_gaps(context, starts, self.document_gap)
        if anchors is not None:
            return training_rows(block, context, anchors, self.config.block_size, attention_mask, starts)
        past = 0 if self.counting_layer is None else layer_memories[self.counting_layer].get_seq_length()
        return decoding_rows(block, context, past, attention_mask)

    def enter(self, noise: Tensor | None, taps: Tensor | None, is_scaled: bool) -> tuple[Tensor, Tensor]:
        """Check both streams and bring them to the draft's width: `[B, Q, H]` and `[B, C, H]`."""
        if noise is None or taps is None:
            raise DraftInputError("a draft needs noise_embeds [B, Q, H_target] and context_hidden_states [B, C, T·W]")
        self.require_widths(noise, taps)
        if self.config.input_embedding_scale != 1.0 and not is_scaled:
            noise = noise * self.config.input_embedding_scale
        block = noise if self.input_proj is None else self.input_proj(noise)
        return block, self.hidden_norm(self.fc(taps))

    def require_widths(self, noise: Tensor, taps: Tensor) -> None:
        """Raise `DraftInputError` unless both streams are `[B, rows, width]` with the widths of the configuration."""
        config = self.config
        if noise.ndim != 3 or taps.ndim != 3 or noise.shape[0] != taps.shape[0]:
            raise DraftInputError(
                f"noise_embeds {list(noise.shape)} and context_hidden_states {list(taps.shape)} must be [B, T, W]"
            )
        if noise.shape[-1] != config.target_hidden_size:
            raise DraftInputError(
                f"noise_embeds is {noise.shape[-1]} wide; the target's embeddings are {config.target_hidden_size}"
            )
        if taps.shape[-1] != config.context_width:
            taps_read = len(config.target_layer_ids or ())
            raise DraftInputError(
                f"context_hidden_states is {taps.shape[-1]} wide; this draft reads {taps_read} taps of width "
                f"{config.context_width // max(taps_read, 1)} side by side: {config.context_width}"
            )

    def require_replayable(self, cache: Cache | None, anchors: Tensor | None) -> None:
        """Raise `DraftInputError` for a cache beside training blocks, or one that checkpointing would write twice."""
        if cache is not None and anchors is not None:
            raise DraftInputError("training blocks keep nothing: give anchors or a cache, not both")
        repeats = (
            self.training and torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in self.layers)
        )
        if cache is not None and repeats:
            raise DraftInputError("gradient checkpointing runs layers twice and would write the cache twice: give none")

    def layer_views(
        self, rows: Rows, layer_memories: tuple[Memory, ...], context: Tensor, phase: str, names: tuple[str, ...]
    ) -> list[View]:
        """What each layer may see, for the backend among `names` that runs it."""
        dropout = self.config.attention_dropout if self.training else 0.0
        plan = self.scan_plan(rows, context, phase)
        views: list[View] = []
        facts: list[Any] = list(self.layers)
        for layer, memory, name in zip(facts, layer_memories, names, strict=True):
            kept = memory.get_mask_sizes(context.shape[1])[0]
            view = rows.visibility.view(layer.window, layer.is_causal, kept, name, dropout)
            views.append(view._replace(plan=plan) if layer.memory == "state" else view)
        return views

    def scan_plan(self, rows: Rows, context: Tensor, phase: str) -> tuple[Any, ...] | None:
        """How to reach the states before all anchors; None where no layer asks.

        Anchors come to the host while training, and while decoding with padding.
        """
        if self.plan_scan is None:
            return None
        batch, length = context.shape[:2]
        is_even = phase == "decoding" and rows.kept is None
        anchors = [[length]] * batch if is_even else rows.anchors.tolist()
        starts = rows.visibility.starts
        return self.plan_scan(anchors, length, context.device, None, None if starts is None else starts.tolist())
