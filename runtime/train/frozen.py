"""What a draft borrows from its target: the table of embeddings and the output head, never trained."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftc.runtime.train.errors import TrainingError

EMBEDDING_KEYS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "transformer.wte.weight")
HEAD_KEYS = ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight", "embed_out.weight")


class TokenTable(nn.Module):
    """Rows of a frozen table as they are stored; what scales them is the draft's to know."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens [..] -> [.., H_target]`."""
        return F.embedding(tokens, self.weight)


class OutputHead(nn.Module):
    """A frozen output head `[V, H_target]`, with the bias `[V]` that few targets have."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden [.., H_target] -> [.., V]`."""
        return F.linear(hidden, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class FrozenVocabulary:
    """The target's `embed` and `lm_head`, in the dtype that the draft computes in."""

    embed: TokenTable
    lm_head: OutputHead

    @property
    def vocab_size(self) -> int:
        """Rows of the table."""
        return self.embed.weight.shape[0]

    @property
    def width(self) -> int:
        """The target's hidden size."""
        return self.embed.weight.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "FrozenVocabulary":
        """The same vocabulary on `device` in `dtype`; a head that shares the table goes on sharing it."""
        table = self.embed.weight.to(device, dtype)
        is_tied = self.lm_head.weight is self.embed.weight
        head = table if is_tied else self.lm_head.weight.to(device, dtype)
        bias = None if self.lm_head.bias is None else self.lm_head.bias.to(device, dtype)
        return FrozenVocabulary(TokenTable(table), OutputHead(head, bias))

    def fingerprint(self) -> str:
        """A digest of the table's shape and of some of its rows, the same for a target in bfloat16 and in float32."""
        table = self.embed.weight
        picked = table[torch.linspace(0, len(table) - 1, min(len(table), 64)).long().to(table.device)]
        content = picked.detach().to("cpu", torch.bfloat16).float().contiguous().numpy().tobytes()
        return sha256(repr(tuple(table.shape)).encode() + content).hexdigest()


def vocabulary_of(model: PreTrainedModel) -> FrozenVocabulary:
    """The vocabulary of a loaded target. Raises `TrainingError` for one without an output head."""
    table: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    if head is None:
        raise TrainingError(f"{type(model).__name__} has no output head, so nothing can be drafted for it")
    weight = table.weight.detach()
    shared = head.weight is table.weight
    bias = getattr(head, "bias", None)
    head_weight = weight if shared else head.weight.detach()
    return FrozenVocabulary(TokenTable(weight), OutputHead(head_weight, None if bias is None else bias.detach()))


def stored_vocabulary(folder: Path) -> FrozenVocabulary:
    """The vocabulary of the target in `folder`, without loading anything else of it.

    Raises `TrainingError` when there are no safetensors files, or neither table nor head under a known name.
    """
    tensors = tensor_files(folder)
    table = read_first(tensors, EMBEDDING_KEYS)
    if table is None:
        raise TrainingError(f"{folder} holds no table of embeddings under {', '.join(EMBEDDING_KEYS)}")
    head = read_first(tensors, HEAD_KEYS)
    return FrozenVocabulary(TokenTable(table), OutputHead(table if head is None else head))


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor in `folder`, by the index where there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as source:
                found.update(dict.fromkeys(source.keys(), file))
        except SafetensorError as error:
            raise TrainingError(f"{file} cannot be read: {error}") from None
    if not found:
        raise TrainingError(f"{folder} holds no safetensors files")
    return found


def read_first(files: dict[str, Path], names: tuple[str, ...]) -> Tensor | None:
    """The first of `names` that is there; None when none is."""
    name = next((name for name in names if name in files), None)
    if name is None:
        return None
    with safe_open(files[name], "pt") as source:
        found: Tensor = source.get_tensor(name)
        return found
