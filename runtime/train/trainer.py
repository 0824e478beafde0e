"""transformers' Trainer for drafts: losses normalised over all that a step sees, and checkpoints that are bundles."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from draftc.runtime.objectives.acceptance import AcceptanceReport, acceptance_report
from draftc.runtime.train.checkpoint import (
    draft_state,
    optimizer_state,
    read_masters,
    read_optimizer,
    write_masters,
    write_optimizer,
)
from draftc.runtime.train.errors import TrainingDataError, TrainingError
from draftc.runtime.train.evaluation import Evaluated, evaluation_sums
from draftc.runtime.train.feed import Collator, Draws, Fed
from draftc.runtime.train.learner import DraftLearner
from draftc.runtime.train.sharding import is_sharded
from draftc.runtime.train.taps import Features, Taps, tapped

WriteBundle = Callable[[Path, dict[str, Tensor]], None]
SCHEDULER = "scheduler.pt"


def measures(report: AcceptanceReport) -> dict[str, float]:
    """The numbers of `report` by the words under which logs show them."""
    values = {"accuracy": report.accuracy, "acceptance_length": report.acceptance_length, "blocks": report.blocks}
    if report.expected_length is not None:
        values["expected_length"] = report.expected_length
    return values | {f"acceptance_at_{number}": share for number, share in enumerate(report.survival, start=1)}


class NewAnchors(TrainerCallback):
    """Every epoch draws other anchors."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def on_epoch_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002 - the signature of callbacks
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Tell the data which epoch begins."""
        self.draws.set_epoch(int(state.epoch or 0))


class DraftTrainer(Trainer):
    """Trains a `DraftLearner` on a frozen `target`, or without one on captured features.

    The loss of a step is Σ c·numerator / denominator, with the denominators of all ranks and accumulation steps
    together, so that how many there are changes neither it nor its gradients. A checkpoint is a bundle that
    `write_bundle` writes, with the float32 weights and the state of the run beside it.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        learner: DraftLearner,
        args: TrainingArguments,
        collator: Collator,
        train: Draws,
        evaluation: Draws | None,
        write_bundle: WriteBundle,
        target: PreTrainedModel | None,
        taps: Taps,
    ) -> None:
        args._n_gpu = min(args.n_gpu, 1)  # several devices are several processes, never threads of one
        super().__init__(
            model=learner,
            args=args,
            data_collator=collator,
            train_dataset=train,
            eval_dataset=evaluation,
            callbacks=[NewAnchors(train)],
        )
        self.learner = learner
        self.collator = collator
        self.evaluation = evaluation
        self.write_bundle = write_bundle
        self.target = target
        self.taps = taps
        if is_sharded(learner):
            # Already spread over the ranks: accelerate would wrap it in DDP on top.
            self.accelerator.prepare_model = lambda model, *_, **__: model

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Fed]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Fed]], Tensor | None]:
        """Take the batches of one step, and what the objective divides by: summed over them and over all ranks."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not samples:
            return samples, None
        found = [self.learner.denominators(sample["fed"].batch.to(device)) for sample in samples]
        return samples, self.accelerator.reduce(torch.stack(found).sum(0), reduction="sum")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: ARG002 - outputs of training blocks serve nobody
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The share of this rank and micro-batch in the loss of the step, times the ranks that average gradients.

        Raises `TrainingDataError` for states that are not finite, `TrainingError` when the loss is not.
        """
        fed: Fed = inputs["fed"].to(self.args.device)
        totals = torch.as_tensor(num_items_in_batch)
        numerators, _ = model(fed.batch, self.features(fed))
        loss = self.learner.objective.combine(numerators, totals, self.progress)
        if not torch.isfinite(loss):
            places = "; ".join(map(str, fed.places))
            raise TrainingError(f"the loss of step {self.state.global_step + 1} is {loss.item()} ({places})")
        return loss * self.args.world_size

    @property
    def progress(self) -> float:
        """The share of all steps that is done."""
        return self.state.global_step / max(self.state.max_steps, 1)

    def features(self, fed: Fed) -> Features:
        """What was captured, or what the target says now. Raises `TrainingDataError` for states that are not finite."""
        if fed.features is not None:
            return fed.features
        if self.target is None:
            raise TrainingError("these data hold no captured states and there is no target to compute them")
        found = tapped(self.target, self.taps, fed.batch.input_ids, fed.batch.attention_mask)
        finite = torch.isfinite(found.taps).all(-1) | (fed.batch.attention_mask == 0)
        if not finite.all():
            wrong = int((~finite.all(-1)).nonzero()[0])
            raise TrainingDataError(fed.places[wrong], "the target's states are not finite")
        return (
            found if self.learner.objective.needs_teacher or not self.learner.training else Features(found.taps, None)
        )

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,  # noqa: ARG002 - nothing is returned that could be ignored
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Loss, accuracy and acceptance over the whole evaluation set, exact for any number of ranks.

        `acceptance_at_k` is the share of blocks that are accepted up to and with their k-th token; see
        `AcceptanceReport`. Raises `TrainingError` when there are no data.
        """
        draws = eval_dataset or self.evaluation
        if draws is None:
            raise TrainingError("there are no data to evaluate on")
        sums, knows_target = self.evaluated(draws)
        values = measures(acceptance_report(sums.counts, knows_target))
        if (sums.denominators > 0).all():
            values["loss"] = self.learner.objective.combine(sums.numerators, sums.denominators, self.progress).item()
        metrics = {f"{metric_key_prefix}_{name}": float(value) for name, value in values.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluated(self, draws: Draws) -> tuple[Evaluated, bool]:
        """The sums over the sequences of `draws` on all ranks, and whether targets were known.

        The epoch of `draws`, which nothing moves, decides the anchors: evaluations of a run see the same blocks.
        """
        model = self.model_wrapped
        was_training = model.training
        model.eval()
        sums, knows_target = evaluation_sums(
            model,
            self.learner,
            draws,
            self.collator,
            self.features,
            self.args.per_device_eval_batch_size,
            (self.args.process_index, self.args.world_size),
            self.args.device,
        )
        model.train(was_training)
        return Evaluated(*(self.accelerator.reduce(each, reduction="sum") for each in sums)), knows_target

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the draft as a bundle to `output_dir`, and its float32 weights beside it."""
        folder = Path(output_dir or self.args.output_dir or ".")
        state = draft_state(self.model_wrapped)
        if self.args.should_save:
            if _internal_call:
                shutil.rmtree(folder, ignore_errors=True)  # what an earlier run left of the same step
            self.write_bundle(folder, state)
            write_masters(state, folder)
        self.accelerator.wait_for_everyone()  # other ranks add to the folder, which must be a bundle by then

    def take_best(self) -> None:
        """Go back to the weights of the checkpoint whose evaluation was best. Raises `TrainingError` without one."""
        best = self.state.best_model_checkpoint
        if best is None:
            raise TrainingError("no checkpoint of this run was evaluated")
        read_masters(self.learner, Path(best))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        read_masters(model or self.learner, Path(resume_from_checkpoint))

    @property
    def inner_optimizer(self) -> Optimizer:
        """The optimizer itself, without what accelerate puts around it."""
        found: Any = self.optimizer
        return getattr(found, "optimizer", found)

    @property
    def schedule(self) -> Any:
        """The learning-rate schedule, once training has made one."""
        return self.lr_scheduler

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = optimizer_state(self.model_wrapped, self.inner_optimizer)
        if self.args.should_save:
            write_optimizer(state, Path(output_dir))
            torch.save(self.schedule.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        read_optimizer(self.model_wrapped, self.inner_optimizer, Path(checkpoint))
        self.schedule.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # the trainer's state, written next, says that all of this is there

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
