"""The module that is trained: draft and objective in one forward, so that a wrapper sees every weight it uses."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from draftc.runtime.batch import DraftBatch
from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.vocabulary import draft_rows
from draftc.runtime.objectives.acceptance import Count, acceptance_counts, no_counts
from draftc.runtime.objectives.chunked import chunked_sums
from draftc.runtime.objectives.steps import Scored, Steps, needed
from draftc.runtime.objectives.term import Objective
from draftc.runtime.train.errors import TrainingError
from draftc.runtime.train.frozen import FrozenVocabulary
from draftc.runtime.train.precision import Casts
from draftc.runtime.train.taps import Features


def require_vocabulary(config: DraftConfig, found: FrozenVocabulary) -> None:
    """Raise `TrainingError` unless `found` is the vocabulary that the draft of `config` is for."""
    if (found.vocab_size, found.width) != (config.vocab_size, config.target_hidden_size):
        raise TrainingError(
            f"this target has {found.vocab_size} tokens of width {found.width}; the draft is for "
            f"{config.vocab_size} of width {config.target_hidden_size}"
        )


def freeze_silent_heads(draft: DraftModel, objective: Objective) -> None:
    """Stop training the heads that no term of `objective` hears: they would get no gradient, which DDP waits for."""
    heard = {term.name for term in objective.terms}
    for term, head in (("selector", "candidate_selector"), ("confidence", "confidence_head")):
        module = getattr(draft, head, None)
        if term not in heard and module is not None:
            module.requires_grad_(False)


class DraftLearner(nn.Module):
    """A draft with float32 weights, what it borrows from its target, and what it is trained for.

    `compute_dtype` is what it computes in: the weights are cast in every forward, gradients arrive in float32. A
    sharded learner leaves that to its shards and is given None. `chunk_blocks` bounds how many blocks have logits at
    the same time; 0: all.
    """

    accepts_loss_kwargs = True

    def __init__(
        self,
        draft: DraftModel,
        vocabulary: FrozenVocabulary,
        objective: Objective,
        chunk_blocks: int = 128,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.draft = draft
        self.vocabulary = vocabulary
        self.objective = objective
        self.chunk_blocks = chunk_blocks
        self.compute_dtype = compute_dtype
        self.casts: Casts | None = None
        require_vocabulary(draft.config, vocabulary)
        freeze_silent_heads(draft, objective)

    def checkpoint_layers(self) -> None:
        """Let every layer forget its activations and compute them again in the backward pass."""
        again = partial(checkpoint, use_reentrant=False, context_fn=lambda: (nullcontext(), self.recomputing()))
        for layer in self.draft.layers:
            # What transformers' method of the model does, whose name changed between versions.
            vars(layer).update(gradient_checkpointing=True, _gradient_checkpointing_func=again)

    def recomputing(self) -> AbstractContextManager[None]:
        """The context of a second computation: that of the first."""
        return nullcontext() if self.casts is None else self.casts.in_place()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in `compute_dtype` until the end of this forward, and in what is computed again for it."""
        self.casts = None if self.compute_dtype is None else Casts(self.draft, self.compute_dtype)
        with self.recomputing():
            yield

    def forward(self, batch: DraftBatch, features: Features) -> tuple[Tensor, Tensor]:
        """The numerators of the objective, `[terms]`, and `acceptance_counts` of `batch`, none while training.

        Raises `ObjectiveError` when a term needs what draft or data do not have.
        """
        with self.computing():
            hidden = self.hidden(batch, features)
            found = self.draft.block_rows(hidden, batch.previous, self.vocabulary.embed)
            rows = tuple(None if value is None else value.flatten(0, 1) for value in found)
            steps = self.steps(batch, features.final)
            return chunked_sums(
                self.objective, self.scored, rows, steps, self.chunk_blocks, self.recomputing, self.count
            )

    @property
    def count(self) -> Count:
        """What is counted besides: how far blocks are accepted, unless the learner is training."""
        return no_counts if self.training else partial(acceptance_counts, drafted=self.draft.slots.drafted)

    def hidden(self, batch: DraftBatch, features: Features) -> Tensor:
        """What the draft's final norm returns for all blocks, `[R, N·b, H]`."""
        dtype = self.draft.fc.weight.dtype
        out = self.draft(
            noise_embeds=self.vocabulary.embed(batch.noise_ids).to(dtype),
            context_hidden_states=batch.context(features.taps).to(dtype),
            position_ids=batch.position_ids,
            anchors=batch.anchors,
            starts=batch.starts,
        )
        return out.hidden_states[-1]

    def steps(self, batch: DraftBatch, final: Tensor | None = None) -> Steps:
        """The predicted tokens of all blocks; `final [D, S, H]` are the target's states where the objective asks."""
        labels, weights = batch.labels.flatten(0, 1), batch.weights.flatten(0, 1)
        supervised = weights > 0
        if self.draft.owns_head:
            labels = draft_rows(labels, self.draft.d2t, self.draft.config.vocab_size)
            weights = torch.where(labels >= 0, weights, 0)
        return Steps(labels.clamp(min=0), weights, supervised, self.teacher(batch, final), batch.documents)

    def teacher(self, batch: DraftBatch, final: Tensor | None) -> Tensor | None:
        """The target's state that predicts each token, `[M, T, H_target]`; None where there is none."""
        if final is None:
            return None
        context = batch.context(final)
        flat = batch.states.flatten(1)[..., None].expand(-1, -1, context.shape[-1])
        return context.gather(1, flat).view(*batch.states.shape, -1).flatten(0, 1)

    def scored(self, rows: tuple[Tensor | None, ...], steps: Steps) -> Scored:
        """Logits of some blocks, from their `HeadRows` `[M, T, ..]`."""
        hidden, features, confidence = rows
        unary = self.draft.unary(needed(hidden, "hidden states"), self.vocabulary.lm_head)
        corrected = self.draft.corrected(unary, features)
        selects = unary.candidates is not None and unary.candidates.ndim > 1
        found = Scored(unary.logits if selects else corrected, unary.logits, confidence=confidence)
        if selects:
            found = replace(found, scores=corrected, candidates=unary.candidates)
        return found if steps.teacher is None else replace(found, teacher=self.teacher_logits(steps.teacher))

    @torch.no_grad()
    def teacher_logits(self, states: Tensor) -> Tensor:
        """The target's logits `[M, T, V]` of the tokens that the draft has, scaled and capped as the draft's are."""
        logits = self.vocabulary.lm_head(states.to(self.vocabulary.lm_head.weight.dtype))
        config = self.draft.config
        if config.output_multiplier != 1.0:
            logits = logits * config.output_multiplier
        if config.final_logit_softcapping is not None:
            logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
        return logits[..., self.draft.token_ids()] if self.draft.owns_head else logits

    @torch.no_grad()
    def denominators(self, batch: DraftBatch) -> Tensor:
        """The denominators of the objective on `batch`, `[terms]` float64: data alone decides them."""
        return self.objective.denominators(self.steps(batch))
