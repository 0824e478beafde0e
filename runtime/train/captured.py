"""Captured states of a target on disk: our shards with their manifest, and the public `.ckpt` records."""

import gzip
import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftc.runtime.train.errors import Place, TrainingDataError, TrainingError, first_line
from draftc.runtime.train.examples import Example, require_states, require_tokens

FORMAT = "draftc_capture_v1"
MANIFEST_FILE = "manifest.json"
INPUTS, MASK, TAPPED, FINAL = "input_ids", "loss_mask", "hidden_states", "target_last_hidden_states"


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """What must agree between captured states and the draft that reads them.

    `fingerprint` is that of the target's table of embeddings; None where a format does not tell.
    """

    layer_ids: tuple[int, ...]
    tap_width: int
    target_width: int
    vocab_size: int
    fingerprint: str | None = None
    final_norm: bool = False
    keeps_streams: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a capture and how many records it holds."""

    file: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a capture is of, and its shards in order."""

    facts: CaptureFacts
    shards: tuple[Shard, ...]

    def text(self) -> str:
        """The manifest as JSON."""
        facts = asdict(self.facts)
        return (
            json.dumps({"format": FORMAT, **facts, "shards": [asdict(shard) for shard in self.shards]}, indent=2) + "\n"
        )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the capture in `folder`. Raises `TrainingError` when it is none."""
    path = folder / MANIFEST_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("format") != FORMAT:
            raise TrainingError(f"{path} is not of the format {FORMAT}")
        shards = tuple(Shard(**shard) for shard in found.pop("shards"))
        return Manifest(CaptureFacts(**{**found, "layer_ids": tuple(found["layer_ids"])}), shards)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(f"{path} is no manifest of a capture: {error}") from None


def require_same(found: CaptureFacts, wanted: CaptureFacts, path: Path) -> None:
    """Raise `TrainingError`, with all differences, unless a capture is of the target and taps that are `wanted`."""
    names = {
        "layer_ids": "target_layer_ids",
        "tap_width": "width of the taps",
        "target_width": "hidden size of the target",
        "vocab_size": "vocabulary of the target",
        "fingerprint": "embeddings of the target",
        "final_norm": "final norm behind the last tap",
        "keeps_streams": "residual streams",
    }
    pairs = [(words, getattr(found, name), getattr(wanted, name)) for name, words in names.items()]
    wrong = [f"{words}: {a} captured, {b} wanted" for words, a, b in pairs if a != b and None not in (a, b)]
    if wrong:
        raise TrainingError(f"{path} was captured for something else: {'; '.join(wrong)}")


class CapturedShards:
    """The records of a capture of ours; a record is read, and checked, when it is asked for."""

    def __init__(self, folder: Path, wanted: CaptureFacts, needs_final: bool, max_length: int) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.wanted = wanted
        self.needs_final = needs_final
        self.max_length = max_length
        require_same(self.manifest.facts, wanted, folder)
        self.places = [(shard.file, row) for shard in self.manifest.shards for row in range(shard.rows)]
        if not self.places:
            raise TrainingError(f"{folder} holds no captured record")

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Example:
        file, row = self.places[index]
        place = Place(self.folder / file, row + 1)
        names = (INPUTS, MASK, TAPPED, FINAL) if self.needs_final else (INPUTS, MASK, TAPPED)
        try:
            with safe_open(self.folder / file, "pt") as source:
                record = {name: source.get_tensor(f"{row}.{name}") for name in names}
        except (SafetensorError, OSError) as error:
            raise TrainingDataError(place, f"it cannot be read: {error}") from None
        return checked(record, place, self.wanted, self.needs_final, self.max_length)


class CapturedRecords:
    """The `rows_*/data_*.ckpt` and `.ckpt.gz` records below a folder, one a file, read when they are asked for."""

    def __init__(self, folder: Path, wanted: CaptureFacts, needs_final: bool, max_length: int) -> None:
        self.files = sorted((*folder.rglob("*.ckpt"), *folder.rglob("*.ckpt.gz")), key=record_number)
        self.wanted = wanted
        self.needs_final = needs_final
        self.max_length = max_length
        if not self.files:
            raise TrainingError(f"{folder} holds no .ckpt record")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Example:
        place = Place(self.files[index], 1)
        return checked(read_record(place), place, self.wanted, self.needs_final, self.max_length)


def record_number(path: Path) -> tuple[int, str]:
    """The number in the name of a record, by which they are ordered, then its path."""
    digits = "".join(character for character in path.name.partition(".")[0] if character.isdigit())
    return int(digits or 0), str(path)


def opened(file: Path) -> IO[bytes]:
    """`file` for reading, unpacked if it is packed."""
    return cast("IO[bytes]", gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def read_record(place: Place) -> dict[str, Any]:
    """The dict in a `.ckpt` file. Raises `TrainingDataError` for a file that is none, or holds more than tensors."""
    try:
        with opened(place.file) as stream:
            record = torch.load(stream, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise TrainingDataError(place, f"it cannot be read: {first_line(error)}") from None
    if not isinstance(record, dict):
        raise TrainingDataError(place, f"it holds a {type(record).__name__}, not a dict of tensors")
    return record


def checked(record: dict[str, Any], place: Place, wanted: CaptureFacts, needs_final: bool, length: int) -> Example:
    """The example in a captured `record`, cut to `length` tokens. Raises `TrainingDataError` when it cannot be used."""
    names = (INPUTS, MASK, TAPPED, *((FINAL,) if needs_final else ()))
    missing = [name for name in names if not isinstance(record.get(name), Tensor)]
    if missing:
        raise TrainingDataError(place, f"it has no tensor {', '.join(missing)}")
    flat = {name: without_batch(record[name], 2 if name in (TAPPED, FINAL) else 1) for name in names}
    example = Example(
        flat[INPUTS].long(), flat[MASK].float(), place, flat[TAPPED], flat[FINAL] if needs_final else None
    )
    require_states(example, wanted.tap_width, wanted.target_width if needs_final else None)
    return require_tokens(example.truncated(length), wanted.vocab_size)


def without_batch(value: Tensor, rank: int) -> Tensor:
    """`value` without a leading dimension of one, which public records may have."""
    return value.squeeze(0) if value.ndim == rank + 1 else value


def is_capture(path: Path) -> bool:
    """Whether `path` is a folder of captured states, ours or public."""
    return path.is_dir() and ((path / MANIFEST_FILE).is_file() or next(path.rglob("*.ckpt*"), None) is not None)


def open_capture(
    path: Path, wanted: CaptureFacts, needs_final: bool, max_length: int
) -> CapturedShards | CapturedRecords:
    """The records in `path`, for a draft that reads what is `wanted`. Raises `TrainingError` when they do not fit."""
    kind = CapturedShards if (path / MANIFEST_FILE).is_file() else CapturedRecords
    return kind(path, wanted, needs_final, max_length)
