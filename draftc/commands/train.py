"""`draftc train`: teach a draft on its target's own text, online or from captured states."""

from pathlib import Path
from typing import Annotated

import typer

from draftc.commands.compile import compiled
from draftc.commands.console import table
from draftc.commands.objective import HELP, objective_numbers
from draftc.commands.options import BackendName, OneLayout, Selection, require_device, require_folder
from draftc.commands.training import (
    Accumulation,
    Arithmetic,
    BatchSize,
    Card,
    ConfidenceWeight,
    Data,
    Epochs,
    Evaluation,
    Gamma,
    KlDecay,
    KlScale,
    LearningRate,
    Loss,
    MaxLength,
    NumAnchors,
    Output,
    Place,
    Precision,
    Ranks,
    SelectorWeight,
    Spread,
    Steps,
    Target,
    Weights,
    material_errors,
)

EXAMPLES = (
    "draftc train layout.yaml --target models/qwen3-4b --data train.jsonl --eval-data held-out.jsonl",
    "draftc train layout.yaml --target models/qwen3-4b --data states --steps 2000",
    "torchrun --nproc-per-node 8 --no-python draftc train layout.yaml --target models/qwen3-4b --data states",
)


def train(
    layout: OneLayout,
    target: Target,
    data: Data,
    output: Output = Path("runs"),
    evaluation: Evaluation = None,
    weights: Weights = None,
    steps: Steps = None,
    epochs: Epochs = 1.0,
    batch_size: BatchSize = 1,
    accumulation: Accumulation = 1,
    learning_rate: LearningRate = 1e-4,
    num_anchors: NumAnchors = 512,
    max_length: MaxLength = 2048,
    loss: Loss = "own",
    gamma: Gamma = None,
    kl_scale: KlScale = 1.0,
    kl_decay: KlDecay = 3.0,
    confidence: ConfidenceWeight = 1.0,
    selector: SelectorWeight = 1.0,
    objective: Annotated[list[str] | None, typer.Option(help=HELP, metavar="KEY=VALUE")] = None,
    precision: Precision = Arithmetic.bf16,
    spread: Spread = Ranks.ddp,
    device: Place = None,
    backend: BackendName = None,
    capability: Card = "detect",
    chunk_blocks: Annotated[int, typer.Option(min=0, help="Blocks whose logits exist at a time; 0: all.")] = 128,
    pack: Annotated[bool, typer.Option("--pack", help="Several documents in a row of --max-length tokens.")] = False,
    static_shapes: Annotated[bool, typer.Option("--static-shapes", help="Pad every batch alike.")] = False,
    checkpoint_layers: Annotated[
        bool, typer.Option("--checkpoint-layers", help="Compute activations twice rather than keep them.")
    ] = False,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 500,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that are kept.")] = 3,
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Steps between evaluations.")] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="End with the checkpoint that is accepted longest on --eval-data.")
    ] = False,
    log_every: Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")] = 10,
    workers: Annotated[int, typer.Option(min=0, help="Processes that prepare data.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on from the last whole checkpoint in --output.")] = True,
    seed: Annotated[int, typer.Option(help="Of weights, order and anchors.")] = 42,
) -> None:
    """Train the draft of a layout. Under torchrun all ranks take part: torchrun --no-python draftc train ..."""
    require_folder(output)
    with material_errors():
        require_device(device)
        from draftc.runtime.objectives.recipes import ObjectiveOptions
        from draftc.runtime.train.run import RunOptions
        from draftc.training import train as run

        card = None if capability == "any" else capability
        draft = compiled(layout, Selection(1, None, backend, card, None))
        numbers = objective_numbers(objective or (), draft.layout.family.name, loss)
        goal = ObjectiveOptions(
            loss, gamma, kl_scale=kl_scale, kl_decay=kl_decay, confidence=confidence, selector=selector, **numbers
        )
        how = RunOptions(
            target, data, output, evaluation, steps, epochs, batch_size, accumulation, learning_rate,
            num_anchors=num_anchors, max_length=max_length, chunk_blocks=chunk_blocks, pack=pack,
            static_shapes=static_shapes, checkpoint_layers=checkpoint_layers,
            precision=precision.value, spread=spread.value, device=device,
            save_every=save_every, keep=keep, evaluate_every=evaluate_every, log_every=log_every,
            workers=workers, resume=resume, seed=seed, keep_best=keep_best,
        )  # fmt: skip
        metrics = run(draft, how, goal, weights)
    report(metrics, output / draft.layout.name)


def report(metrics: dict[str, float], folder: Path) -> None:
    """Say what the last evaluation found, and where the bundle is."""
    if metrics:
        rows = [(name.removeprefix("eval_").replace("_", " "), f"{value:.4g}") for name, value in metrics.items()]
        table("evaluation", ("what", "value"), rows, right=("value",))
    typer.echo(f"wrote {folder}")
