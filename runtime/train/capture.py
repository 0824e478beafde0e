"""Writing captured states: shards, each whole or absent, and a manifest that goes on where it stopped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from draftc.runtime.objectives.steps import needed
from draftc.runtime.train.captured import (
    FINAL,
    INPUTS,
    MANIFEST_FILE,
    MASK,
    TAPPED,
    CaptureFacts,
    Manifest,
    Shard,
    read_manifest,
    require_same,
)
from draftc.runtime.train.checkpoint import replace_file
from draftc.runtime.train.errors import TrainingDataError
from draftc.runtime.train.examples import Example
from draftc.runtime.train.frozen import vocabulary_of
from draftc.runtime.train.taps import Taps, tapped

Progress = Callable[[int, int], None]


def capture(
    target: PreTrainedModel,
    taps: Taps,
    examples: Sequence[Example],
    facts: CaptureFacts,
    folder: Path,
    shard_rows: int = 256,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Manifest:
    """Run `target` over `examples` and write what a draft reads of it to `folder`.

    A capture that stopped goes on after its last whole shard. Raises `TrainingError` when `folder` holds one of
    something else, `TrainingDataError` for an example on which the target's states are not finite.
    """
    manifest = begun(folder, facts)
    done = sum(shard.rows for shard in manifest.shards)
    while done < len(examples):
        part = examples[done : done + shard_rows]
        name = f"shard-{len(manifest.shards):05d}.safetensors"
        tensors = shard_tensors(target, taps, part, batch_size)
        replace_file(folder / name, lambda file, tensors=tensors: save_file(tensors, file))
        manifest = replace(manifest, shards=(*manifest.shards, Shard(name, len(part))))
        write_manifest(folder, manifest)
        done += len(part)
        if progress is not None:
            progress(done, len(examples))
    return manifest


def begun(folder: Path, facts: CaptureFacts) -> Manifest:
    """The manifest in `folder`, or a new one without shards."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST_FILE).is_file():
        found = read_manifest(folder)
        require_same(found.facts, facts, folder)
        return found
    return Manifest(facts, ())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put `manifest` into the place of the one before."""
    replace_file(folder / MANIFEST_FILE, lambda file: file.write_text(manifest.text(), encoding="utf-8"))


def shard_tensors(
    target: PreTrainedModel, taps: Taps, examples: Sequence[Example], batch_size: int
) -> dict[str, Tensor]:
    """The tensors of one shard, `<row>.<name>`, states in the dtype that the target computes in."""
    found: dict[str, Tensor] = {}
    for row, (example, states, final) in enumerate(captured_rows(target, taps, examples, batch_size)):
        if not torch.isfinite(states).all() or not torch.isfinite(final).all():
            raise TrainingDataError(example.place, "the target's states are not finite")
        record = {INPUTS: example.input_ids, MASK: example.loss_mask, TAPPED: states, FINAL: final}
        found.update({f"{row}.{name}": tensor for name, tensor in record.items()})
    return found


def captured_rows(
    target: PreTrainedModel, taps: Taps, examples: Sequence[Example], batch_size: int
) -> Iterator[tuple[Example, Tensor, Tensor]]:
    """Every example with its tapped states `[S, T·W]` and its final states `[S, H_target]`, on the host."""
    device = vocabulary_of(target).embed.weight.device
    for start in range(0, len(examples), batch_size):
        part = examples[start : start + batch_size]
        ids = pad_sequence([example.input_ids for example in part], batch_first=True)
        real = pad_sequence([torch.ones_like(example.input_ids) for example in part], batch_first=True)
        features = tapped(target, taps, ids.to(device), real.to(device))
        final = needed(features.final, "final states")
        for row, example in enumerate(part):
            length = len(example.input_ids)
            yield example, features.taps[row, :length].cpu().clone(), final[row, :length].cpu().clone()
