"""Drafts, targets and tokenizers from where they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


# What broken files and the code of a broken bundle raise while transformers loads them.
BROKEN = (
    OSError,
    ValueError,
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    LookupError,
    RuntimeError,
)


class LoadError(ValueError):
    """Something that cannot be loaded. `message` says what and why, `help` what to do."""

    def __init__(self, message: str, help: str = "") -> None:  # noqa: A002 - the word of diagnostics
        self.message = message
        self.help = help
        super().__init__(f"{message}; {help}" if help else message)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a target is stored: a folder or a repository's name; `gguf_file` in it, when it is stored as GGUF."""

    path: str
    gguf_file: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What transformers' loaders take besides the path."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def load_target(source: Source, dtype: "torch.dtype | str", device: str) -> Any:
    """Load a causal language model for inference. Raises `LoadError` with transformers' own reason."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    from draftc.runtime.train.errors import first_line

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype, **source.options)
    except (*BROKEN, SafetensorError) as error:
        raise LoadError(f"target {source.path}: {first_line(error)}", target_help(source)) from None
    return model.to(device).eval()


def load_tokenizer(source: Source) -> Any:
    """Load the tokenizer beside a target. Raises `LoadError` with transformers' own reason."""
    from transformers import AutoTokenizer

    from draftc.runtime.train.errors import first_line

    try:
        return AutoTokenizer.from_pretrained(source.path, **source.options)
    except (OSError, ValueError, ImportError) as error:
        raise LoadError(f"tokenizer of {source.path}: {first_line(error)}", target_help(source)) from None


def load_draft(bundle: str | Path, dtype: "torch.dtype", device: str) -> Any:
    """Load the draft of a bundle for inference, through the bundle's own code. Raises `LoadError`."""
    from safetensors import SafetensorError
    from transformers import AutoModel

    from draftc.runtime.train.errors import first_line

    folder = Path(bundle)
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} is no bundle: it has no config.json", "write one with `draftc compile`")
    if not any(folder.glob("*.safetensors")):
        raise LoadError(f"{folder} has no weights", "train the draft, or compile it with `--weights random` to try it")
    try:
        model: Any = AutoModel.from_pretrained(str(folder.resolve()), dtype=dtype, trust_remote_code=True)
    except (*BROKEN, SafetensorError) as error:
        raise LoadError(
            f"bundle {folder}: {first_line(error)}", "`draftc verify` runs its code; `draftc compile` writes it anew"
        ) from None
    return model.to(device).eval()


def target_help(source: Source) -> str:
    """The likely way out: the name of a GGUF file when a folder holds one and none was named."""
    folder = Path(source.path)
    found = sorted(file.name for file in folder.glob("*.gguf")) if folder.is_dir() else []
    if source.gguf_file is None and found:
        return f"it holds {found[0]}: name it as the GGUF file"
    return "give the folder or the name of a causal language model, with its tokenizer"


def encoded(texts: Sequence[str], tokenizer: Any) -> "tuple[torch.Tensor, torch.Tensor]":
    """Token ids `[B, P]` of `texts`, padded on the left, and their mask. Raises `LoadError` for an empty one."""
    import torch

    rows = [tokenizer(text, return_tensors="pt").input_ids[0] for text in texts]
    if not rows or not all(map(len, rows)):
        raise LoadError("a prompt is empty", "give at least one word")
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    real = torch.stack([torch.arange(width) >= width - len(row) for row in rows])
    return ids, real
