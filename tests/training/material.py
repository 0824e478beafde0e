"""Small targets, documents and learners for the proofs of training."""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from draftc.runtime.batch import Document, DraftBatch, batch_of
from draftc.runtime.blocks import BlockShape
from draftc.runtime.draft import DraftModel
from draftc.runtime.objectives.recipes import ObjectiveOptions, objective_for
from draftc.runtime.packing import Packing
from draftc.runtime.train.frozen import FrozenVocabulary, OutputHead, TokenTable
from draftc.runtime.train.learner import DraftLearner
from draftc.runtime.train.taps import Features
from tests.runtime.headed import FAMILIES, headed

LENGTHS = (11, 7, 9, 5)


def documents(draft: DraftModel, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Document]:
    """Documents of random tokens, the first two unsupervised and one in the middle too."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, length in enumerate(lengths):
        ids = torch.randint(0, draft.config.vocab_size - 1, (length,), generator=generator)
        mask = torch.ones(length)
        mask[:1] = 0
        if length > 8:
            mask[6] = 0
        found.append(Document(ids, mask, 100 + number))
    return found


def shape_of(draft: DraftModel, num_anchors: int = 3) -> BlockShape:
    """How the blocks of `draft` are cut."""
    return BlockShape(num_anchors, draft.slots.size, draft.config.mask_token_id, draft.slots.steps)


def features(draft: DraftModel, given: list[Document], seed: int = 5) -> Features:
    """Random states of a target for `given`, float64, zeros behind the end of each."""
    generator = torch.Generator().manual_seed(seed)
    length = max(len(document.input_ids) for document in given)
    taps = torch.randn(len(given), length, draft.config.context_width, generator=generator, dtype=torch.float64)
    final = torch.randn(len(given), length, draft.config.target_hidden_size, generator=generator, dtype=torch.float64)
    real = torch.tensor([[place < len(document.input_ids) for place in range(length)] for document in given])
    return Features(taps * real[..., None], final * real[..., None])


def vocabulary(draft: DraftModel, seed: int = 3) -> FrozenVocabulary:
    """A target's table and head, float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = draft.config.vocab_size, draft.config.target_hidden_size
    table, head = (torch.randn(sizes, generator=generator, dtype=torch.float64) for _ in range(2))
    return FrozenVocabulary(TokenTable(table), OutputHead(head))


def learner(family: str, *attentions: str, chunk_blocks: int = 0, loss: str = "own", seed: int = 0) -> DraftLearner:
    """A float64 learner of `family` over `attentions`."""
    draft = headed(FAMILIES[family], *attentions, seed=seed)
    name = family.split("-")[0]
    has_confidence = getattr(FAMILIES[family], "enable_confidence_head", False)
    goal = objective_for(name, has_confidence, ObjectiveOptions(loss=loss, gamma=3.0, lambda_start=0.7))
    return DraftLearner(draft, vocabulary(draft), goal, chunk_blocks).train()


def step(
    trained: DraftLearner, given: list[Document], states: Features, packing: Packing | None = None
) -> tuple[Tensor, dict[str, Tensor], Tensor, DraftBatch]:
    """The loss of one step, its gradients by name, the acceptance counts, and the batch."""
    batch = batch_of(given, shape_of(trained.draft), packing)
    numerators, counts = trained(batch, states)
    loss = trained.objective.combine(numerators, trained.denominators(batch), 0.25)
    named = {name: parameter for name, parameter in trained.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return loss, {name: g for name, g in zip(named, found, strict=True) if g is not None}, counts, batch


def write_target(folder: Path, seed: int = 0) -> LlamaForCausalLM:
    """A random tiny target whose greedy continuations are not all alike, saved in `folder`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    target = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    target.save_pretrained(folder)
    return target


def write_rows(target: LlamaForCausalLM, path: Path, count: int, length: int = 32, seed: int = 1) -> None:
    """`count` prompts of four tokens with the target's own greedy continuations, as rows of tokens."""
    prompts = torch.randint(0, 60, (count, 4), generator=torch.Generator().manual_seed(seed))
    done = target.generate(prompts, max_new_tokens=length - 4, do_sample=False, pad_token_id=0, eos_token_id=None)
    rows = [{"input_ids": row, "loss_mask": [0] * 4 + [1] * (length - 4)} for row in done.tolist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


LAYOUT = """
draftc: 1
name: tiny
family: {family}
target: {{hidden_size: 32, num_hidden_layers: 4, vocab_size: 64, intermediate_size: 64, max_position_embeddings: 256,
         rms_norm_eps: 1e-6, dtype: float32}}
target_layer_ids: [0, 2]
block_size: 4
mask_token_id: 63
rope: {{style: half, rope_theta: 10000}}
attentions:
  context: {{kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8}}
  reset: {{kind: kda, num_heads: 2, head_dim: 8, short_conv_kernel_size: 4, gate_lower_bound: -5.0}}
  scan: {{extends: reset, context_state: scan}}
layers: [{layers}]
{heads}
"""
HEADS = {
    "dflash": "",
    "dflash2": "dflash2: {conv_kernel_size: 2, conv_group_size: 16, selector_rank: 6, selector_top_k: 8}",
    "domino": "domino: {gru_hidden_dim: 10, emb_dim: 12, pure_draft_prefix_len: 1, shift_label: true}",
    "dspark": "dspark: {sample_from_anchor: true, markov_rank: 6, markov_head_type: rnn, enable_confidence_head: true, "
    "confidence_head_with_markov: true}",
}


def write_layout(path: Path, *layers: str, family: str = "dflash") -> Path:
    """The layout of a draft for `write_target`'s target."""
    path.write_text(LAYOUT.format(layers=", ".join(layers), family=family, heads=HEADS[family]), encoding="utf-8")
    return path
