"""A whole training run: the target, the data, the learner on its ranks, and the Trainer that goes through the steps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from draftc.runtime.blocks import BlockShape
from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.objectives.term import Objective
from draftc.runtime.train.captured import CaptureFacts, is_capture, open_capture
from draftc.runtime.train.checkpoint import last_checkpoint
from draftc.runtime.train.errors import TrainingError, first_line
from draftc.runtime.train.examples import ExampleSource
from draftc.runtime.train.feed import Collator, Draws
from draftc.runtime.train.frozen import FrozenVocabulary, stored_vocabulary, vocabulary_of
from draftc.runtime.train.learner import DraftLearner
from draftc.runtime.train.reduced import fill_reduced_vocabulary
from draftc.runtime.train.sharding import shard
from draftc.runtime.train.taps import Taps
from draftc.runtime.train.text import Reading, text_examples
from draftc.runtime.train.trainer import DraftTrainer, WriteBundle

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SPREADS = ("ddp", "fsdp")
BEST_BY = "eval_acceptance_length"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything about a run but the draft and its objective.

    `steps` counts optimiser steps; None: `epochs` decide. `pack` fills rows of `max_length` tokens with several
    documents. `static_shapes` pads every batch alike. `chunk_blocks` bounds how many blocks have logits at a time.
    `keep_best` evaluates at every checkpoint, and ends with the weights of the one whose acceptance length is largest.
    """

    target: Path
    data: Path
    output: Path
    evaluation: Path | None = None
    steps: int | None = None
    epochs: float = 1.0
    batch_size: int = 1
    accumulation: int = 1
    learning_rate: float = 1e-4
    warmup: float = 0.015
    weight_decay: float = 0.0
    max_grad_norm: float = 0.5
    num_anchors: int = 512
    max_length: int = 2048
    chunk_blocks: int = 128
    pack: bool = False
    static_shapes: bool = False
    checkpoint_layers: bool = False
    precision: str = "bf16"
    spread: str = "ddp"
    device: str | None = None
    save_every: int = 500
    keep: int = 3
    evaluate_every: int | None = None
    log_every: int = 10
    workers: int = 0
    resume: bool = True
    seed: int = 42
    keep_best: bool = False

    def __post_init__(self) -> None:
        """Raise `TrainingError` for what cannot be."""
        if self.precision not in DTYPES or self.spread not in SPREADS:
            raise TrainingError(f"precision is one of {', '.join(DTYPES)}, spread one of {', '.join(SPREADS)}")
        small = [n for n in ("batch_size", "accumulation", "num_anchors", "save_every", "keep") if getattr(self, n) < 1]
        if small or self.max_length < 2:
            raise TrainingError(f"{', '.join(small) or 'max_length'} is too small")
        if self.keep_best and (self.evaluation is None or self.evaluate_every not in (None, self.save_every)):
            raise TrainingError("the best checkpoint is found by evaluating every one: give data, and one interval")


@dataclass(frozen=True, slots=True)
class Material:
    """What a run learns from: the loaded target (None: everything was captured), its vocabulary, the examples."""

    target: PreTrainedModel | None
    vocabulary: FrozenVocabulary
    train: ExampleSource
    evaluation: ExampleSource | None


def training_arguments(options: RunOptions) -> TrainingArguments:
    """The Trainer's arguments. The process group starts here when there are several ranks."""
    on_cpu = options.device == "cpu" or not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps or -1,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        optim="adamw_torch" if on_cpu else "adamw_torch_fused",
        save_steps=options.save_every,
        save_total_limit=max(options.keep, 2) if options.keep_best else options.keep,  # the best and the last
        eval_strategy="steps" if options.evaluation else "no",
        eval_steps=options.evaluate_every or options.save_every,
        metric_for_best_model=BEST_BY if options.keep_best else None,
        greater_is_better=True if options.keep_best else None,
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        report_to="none",
        use_cpu=on_cpu,
        dataloader_num_workers=options.workers,
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        seed=options.seed,
        data_seed=options.seed,
    )


def loaded_target(folder: Path, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """The frozen target in `folder`, in `dtype`. Raises `TrainingError` when transformers cannot load it."""
    try:
        target = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError) as error:
        raise TrainingError(f"the target {folder} cannot be loaded: {first_line(error)}") from None
    model: nn.Module = target
    model.to(device).requires_grad_(False).eval()
    return target


def target_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the target in `folder`; None when it has none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    return AutoTokenizer.from_pretrained(folder)


def material(options: RunOptions, draft: DraftModel, taps: Taps, needs_final: bool, device: torch.device) -> Material:
    """Read data and target. The target is loaded whole only when some data hold no captured states."""
    paths = [path for path in (options.data, options.evaluation) if path is not None]
    missing = [path for path in (*paths, options.target) if not path.exists()]
    if missing:
        raise TrainingError(f"{missing[0]} does not exist")
    dtype = DTYPES[options.precision]
    target = None if all(map(is_capture, paths)) else loaded_target(options.target, dtype, device)
    vocabulary = stored_vocabulary(options.target) if target is None else vocabulary_of(target)
    facts = wanted_facts(draft.config, taps, vocabulary)
    read = examples_reader(options, facts, needs_final)
    evaluation = None if options.evaluation is None else read(options.evaluation)
    return Material(target, vocabulary.to(device, dtype), read(options.data), evaluation)


def wanted_facts(config: DraftConfig, taps: Taps, vocabulary: FrozenVocabulary) -> CaptureFacts:
    """What captured states must be of, for the draft of `config` to learn from them."""
    return CaptureFacts(
        taps.layer_ids,
        config.context_width or 0,
        config.target_hidden_size or 0,
        config.vocab_size,
        vocabulary.fingerprint(),
        taps.final_norm,
        taps.keeps_streams,
    )


def examples_reader(options: RunOptions, facts: CaptureFacts, needs_final: bool) -> Callable[[Path], ExampleSource]:
    """What reads a path of data, captured or text."""

    def read(path: Path) -> ExampleSource:
        if is_capture(path):
            return open_capture(path, facts, needs_final, options.max_length)
        reading = Reading(target_tokenizer(options.target), facts.vocab_size, options.max_length)
        return text_examples(path, reading)

    return read


def collator_of(draft: DraftModel, options: RunOptions) -> Collator:
    """How examples become batches."""
    slots = draft.slots
    shape = BlockShape(options.num_anchors, slots.size, int(draft.config.mask_token_id or 0), slots.steps)
    packed, static = (options.max_length if wish else None for wish in (options.pack, options.static_shapes))
    return Collator(shape, packed, static, draft.document_gap)


def train(
    draft: DraftModel, objective: Objective, taps: Taps, options: RunOptions, write_bundle: WriteBundle
) -> DraftTrainer:
    """Train `draft`, whose weights are float32, and return the trainer after its last step.

    With several ranks (torchrun) every rank calls this. A run goes on from the last whole checkpoint in
    `options.output` unless `resume` is off. Raises `TrainingError`, `TrainingDataError` and `ObjectiveError`.
    """
    args = training_arguments(options)
    device = args.device
    found = material(options, draft, taps, objective.needs_teacher, device)
    fill_reduced_vocabulary(draft, found.train, found.vocabulary)
    nn.Module.to(draft, device)
    trainer = trainer_of(draft, objective, taps, options, args, found, write_bundle)
    checkpoint = last_checkpoint(options.output) if options.resume else None
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if options.keep_best:
        trainer.take_best()
    return trainer


def trainer_of(
    draft: DraftModel,
    objective: Objective,
    taps: Taps,
    options: RunOptions,
    args: TrainingArguments,
    found: Material,
    write_bundle: WriteBundle,
) -> DraftTrainer:
    """The trainer of a run, its learner sharded if asked and if there are ranks to share."""
    dtype = DTYPES[options.precision]
    narrow = None if dtype == torch.float32 else dtype
    learner = DraftLearner(draft, found.vocabulary, objective, options.chunk_blocks, narrow)
    if options.checkpoint_layers:
        learner.checkpoint_layers()
    if options.spread == "fsdp" and torch.distributed.is_initialized():
        learner = shard(learner, narrow)
    evaluation = None if found.evaluation is None else Draws(found.evaluation, options.seed)
    draws = Draws(found.train, options.seed)
    return DraftTrainer(learner, args, collator_of(draft, options), draws, evaluation, write_bundle, found.target, taps)
