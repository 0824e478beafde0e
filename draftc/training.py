"""Training and capturing for a compiled layout: what ties the compiler's drafts to the runtime's trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from draftc.compiler.api import CompiledDraft
    from draftc.runtime.objectives.recipes import ObjectiveOptions
    from draftc.runtime.train.captured import Manifest
    from draftc.runtime.train.run import RunOptions
    from draftc.runtime.train.taps import Taps
    from draftc.spec.layout import Layout


def train(
    compiled: "CompiledDraft",
    options: "RunOptions",
    objective: "ObjectiveOptions | None" = None,
    weights: Path | None = None,
) -> "dict[str, float]":
    """Train `compiled` as `options` say, write the bundle to `options.output / name`, and return the last metrics.

    `weights` is a bundle or a safetensors file to start from; without it weights are drawn from `options.seed`. Under
    torchrun every rank calls this; the first one writes. Raises `TrainingError`, `TrainingDataError` and
    `ObjectiveError` of the runtime for material that does not fit, WeightsError for weights that do not.
    """
    from draftc.runtime.objectives.recipes import ObjectiveOptions, objective_for
    from draftc.runtime.train.checkpoint import draft_state
    from draftc.runtime.train.run import train as run

    layout = compiled.layout
    has_confidence = getattr(layout.family, "enable_confidence_head", False)
    goal = objective_for(layout.family.name, has_confidence, objective or ObjectiveOptions())
    draft = first_weights(compiled, options.seed, weights)
    trainer = run(draft, goal, taps_of(layout), options, lambda folder, state: compiled.write(folder, weights=state))
    metrics = trainer.evaluate() if options.evaluation is not None else {}
    state = draft_state(trainer.model_wrapped)
    if trainer.args.should_save:
        compiled.write(options.output / layout.name, weights=state)
    return metrics


def taps_of(layout: "Layout") -> "Taps":
    """The states of the target that `layout` reads."""
    from draftc.runtime.train.taps import Taps

    return Taps(
        layout.target_layer_ids,
        final_norm=layout.final_tap == "post_norm",
        keeps_streams=layout.target_stream_contraction == "none",
    )


def first_weights(compiled: "CompiledDraft", seed: int, weights: Path | None) -> Any:
    """The model with float32 weights: drawn from `seed`, alike on every rank, or read from `weights`."""
    import torch

    torch.manual_seed(seed)
    model = compiled.model(dtype=torch.float32)
    if weights is not None:
        model.load_state_dict(stored_state(compiled, weights))
    return model


def stored_state(compiled: "CompiledDraft", weights: Path) -> "dict[str, Tensor]":
    """The tensors of `weights`. Raises WeightsError unless they are those of the layout."""
    from safetensors.torch import load_file

    from draftc.compiler.weights import present_weight_files, require_fitting, shapes_in

    files = present_weight_files(weights)
    require_fitting(shapes_in(files), compiled.program, weights.name)
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def capture(
    compiled: "CompiledDraft",
    target: Path,
    data: Path,
    output: Path,
    max_length: int = 2048,
    batch_size: int = 8,
    shard_rows: int = 256,
    device: str | None = None,
    dtype: str = "bf16",
    progress: "Callable[[int, int], None] | None" = None,
) -> "Manifest":
    """Run the target over `data` and write the states that `compiled` reads to `output`; goes on where it stopped.

    `progress` is told how many examples are done, and of how many.

    Raises `TrainingError` and `TrainingDataError` of the runtime for material that does not fit.
    """
    import torch

    from draftc.runtime.train.capture import capture as write
    from draftc.runtime.train.frozen import vocabulary_of
    from draftc.runtime.train.learner import require_vocabulary
    from draftc.runtime.train.run import DTYPES, loaded_target, target_tokenizer, wanted_facts
    from draftc.runtime.train.text import Reading, text_examples

    config = compiled.model(device="meta").config
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = loaded_target(target, DTYPES[dtype], place)
    vocabulary = vocabulary_of(model)
    require_vocabulary(config, vocabulary)
    taps = taps_of(compiled.layout)
    examples = text_examples(data, Reading(target_tokenizer(target), config.vocab_size, max_length))
    facts = wanted_facts(config, taps, vocabulary)
    return write(model, taps, examples, facts, output, shard_rows, batch_size, progress)
