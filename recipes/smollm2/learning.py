"""One variant's training run."""

from pathlib import Path

import draftc
from draftc.compiler.passes.select import detected_capability
from draftc.compiler.program import Options
from draftc.runtime.objectives.recipes import ObjectiveOptions
from draftc.runtime.train.run import RunOptions
from draftc.training import train
from recipes.smollm2.settings import Budget, Variant

SAVE_EVERY = 200  # steps; a run that was cut off goes on from there


def run_folder(folder: Path, variant: Variant, seed: int) -> Path:
    """Where a run of `variant` keeps what it makes."""
    return folder / "runs" / f"{variant.name.replace(' ', '-')}-{seed}"


def bundle_folder(folder: Path, variant: Variant, seed: int) -> Path:
    """Where the trained bundle lies once the run has ended."""
    return run_folder(folder, variant, seed) / variant.layout


def learn(folder: Path, variant: Variant, seed: int, budget: Budget, device: str, precision: str) -> None:
    """Train `variant` on the captured states in `folder`; goes on from its last checkpoint."""
    capability = detected_capability() if device == "cuda" else None
    compiled = draftc.compile(variant.path, Options(capability=capability))
    options = RunOptions(
        target=folder / "target",
        data=folder / "states",
        output=run_folder(folder, variant, seed),
        steps=budget.steps,
        batch_size=budget.batch_size,
        num_anchors=budget.num_anchors,
        learning_rate=budget.learning_rate,
        warmup=0.05,
        max_length=512,
        chunk_blocks=budget.batch_size * budget.num_anchors,
        precision=precision,
        device=device,
        save_every=SAVE_EVERY,
        keep=1,
        log_every=20,
        seed=seed,
    )
    train(compiled, options, ObjectiveOptions(variant.loss))
