"""Small targets, drafts compiled for them, and drafts whose proposals are planted."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftc.compiler import api
from draftc.compiler.program import Options
from draftc.runtime.generate import start_decoding
from draftc.runtime.generation.loop import Decoding
from draftc.runtime.generation.result import Round
from draftc.runtime.heads.scores import Choose, Drafted
from draftc.runtime.heads.vocabulary import vocabulary_maps
from draftc.spec.layout import Dflash, Dflash2, Domino, Dspark, Family, Target
from tests.compiler.support import layout

VOCABULARY, WIDTH, DEPTH, MASK = 100, 24, 4, 99
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 40, "num_hidden_layers": DEPTH}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
DENSE = {**SIZES, **HEADS, **NO_TOKENS, "initializer_range": 0.3}
WINDOW = {"sliding_window": 6, "use_sliding_window": True}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LATENT = {
    **SIZES,
    **NO_TOKENS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": DEPTH,
    "initializer_range": 0.3,
}
LEARNED = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": 3, "n_positions": 128, **NO_TOKENS}

TARGETS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "full": (Qwen3Config, Qwen3ForCausalLM, DENSE),
    "sliding": (MistralConfig, MistralForCausalLM, {**DENSE, "sliding_window": 6}),
    "alternating": (Qwen3Config, Qwen3ForCausalLM, {**DENSE, "layer_types": ALTERNATING, **WINDOW}),
    "latent": (DeepseekV3Config, DeepseekV3ForCausalLM, LATENT),
    "learned-positions": (GPT2Config, GPT2LMHeadModel, {**LEARNED, "initializer_range": 0.3}),
}
STACKS = (
    ("context",),
    ("latent",),
    ("scan",),
    ("recurrent", "context"),
    ("near", "context"),
    ("scan", "latent", "near"),
    ("context", "near", "latent", "recurrent", "scan"),
)
FAMILIES: dict[str, Family] = {
    "dflash": Dflash(),
    "dflash2": Dflash2(2, 4, 6, 8),
    "domino": Domino(10, 12, 1, False),
    "domino-shifted": Domino(10, 12, 0, True),
    "dspark": Dspark(True, 6, "vanilla", True, True),
    "dspark-rnn": Dspark(True, 6, "rnn", False, None),
    "dspark-own-slot": Dspark(False, 6, "gated", False, None),
    "dspark-without-markov": Dspark(True, 0, None, True, False),
}


@cache
def small_target(kind: str = "full", dtype: torch.dtype = torch.float64, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(0)
    config_class, model_class, facts = TARGETS[kind]
    model = model_class(config_class(**{**facts, "vocab_size": vocabulary})).to(dtype).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


@cache
def small_draft(
    stack: tuple[str, ...] = ("context",),
    block_size: int = 4,
    family: Family | None = None,
    dtype: torch.dtype = torch.float64,
    taps: tuple[int, ...] = (0, 2),
    vocabulary: int = VOCABULARY,
    own_vocabulary: int | None = None,
    **changes: Any,
) -> Any:
    """A compiled draft with random weights for any of the small targets; `own_vocabulary` of its tokens at most."""
    facts = layout(
        *stack,
        family=family or Dflash(),
        target=Target(hidden_size=WIDTH, num_hidden_layers=DEPTH, vocab_size=vocabulary),
        target_layer_ids=taps,
        block_size=block_size,
        mask_token_id=vocabulary - 1,
        draft_vocab_size=own_vocabulary or vocabulary,
        **changes,
    )
    torch.manual_seed(1)
    model = api.compile(facts, Options(packages={"torch": "2.13.0"})).model(dtype=dtype).eval()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    if own_vocabulary is not None:
        model.d2t, model.t2d = vocabulary_maps(torch.randperm(vocabulary)[:own_vocabulary], vocabulary)
    return model


def prompts(lengths: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random prompts, padded on the left with 0: `input_ids` and `attention_mask`."""
    drawn = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, MASK, (length,), generator=drawn) for length in lengths]
    width = max(lengths)
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(width) >= width - length for length in lengths]).long()
    return ids, mask


def plain_tokens(target: Any, ids: Tensor, mask: Tensor, count: int, **options: Any) -> list[list[int]]:
    """New tokens of the target's own greedy decoding, every row alone and unpadded."""
    found = []
    for row, real in zip(ids, mask.bool(), strict=True):
        alone = row[real][None]
        settings = {"max_new_tokens": count, "do_sample": False, "attention_mask": torch.ones_like(alone), **options}
        found.append(target.generate(alone, **settings)[0, alone.shape[1] :].tolist())
    return found


class Planted:
    """A draft that proposes the target's continuation, right up to a random slot, in place of its own tokens.

    Its hidden states are those that it computes; every one of them is compared with those that it has for the row
    alone, without cache, on hidden states that transformers hands out.
    """

    def __init__(self, draft: Any, target: Any, ids: Tensor, mask: Tensor, count: int, seed: int) -> None:
        self.draft = draft
        self.target = target
        self.draw = random.Random(seed)
        self.wanted = plain_tokens(target, ids, mask, count + draft.slots.drafted)
        self.texts = [row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)]
        self.planted: list[dict[int, int]] = []
        self.worst = 0.0
        self.run: Decoding = start_decoding(draft, target, ids, mask, max_new_tokens=count, stop_token_ids=())

    def rounds(self) -> list[Round]:
        own, self.draft.draft_tokens = self.draft.draft_tokens, self.propose
        try:
            return list(self.run.rounds())
        finally:
            del self.draft.draft_tokens
            assert self.draft.draft_tokens == own

    def propose(self, hidden: Tensor, anchors: Tensor, lm_head: nn.Module, embed: nn.Module, choose: Choose) -> Drafted:
        drafted = type(self.draft).draft_tokens(self.draft, hidden, anchors, lm_head, embed, choose)
        tokens = drafted.tokens.clone()
        lengths = {}
        for place, row in enumerate(self.run.rows):
            done = len(self.run.new[row])
            self.compare(hidden[place], row, done)
            right = self.draw.randint(0, tokens.shape[1])
            line = torch.tensor(self.wanted[row][done : done + tokens.shape[1]])
            tokens[place] = torch.where(torch.arange(len(line)) < right, line, (line + 1) % VOCABULARY)
            lengths[row] = right + 1
        self.planted.append(lengths)
        return drafted._replace(tokens=tokens)

    def compare(self, hidden: Tensor, row: int, done: int) -> None:
        """Remember how far `hidden [b, H]` of `row`, with `done` new tokens, is from what the row has alone."""
        config = self.draft.config
        text = torch.tensor([self.texts[row] + self.wanted[row][: done - 1]])
        states = self.target(text, output_hidden_states=True).hidden_states
        taps = torch.cat([states[index + 1] for index in config.target_layer_ids], dim=-1)
        noise = torch.tensor([[self.wanted[row][done - 1], *[MASK] * (config.block_size - 1)]])
        embeds = self.target.get_input_embeddings()(noise)
        alone = self.draft(noise_embeds=embeds, context_hidden_states=taps).hidden_states[-1][0]
        self.worst = max(self.worst, float((hidden - alone).abs().max() / alone.abs().max()))
