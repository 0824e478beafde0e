"""`draftc generate`: text from a target with the help of a draft, as it comes, and how fast it came."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftc.commands.console import errors, progress, table
from draftc.commands.failure import CommandError
from draftc.commands.options import Device, finite, require_device

if TYPE_CHECKING:
    from torch import Tensor

    from draftc.runtime.generation.result import Generation

EXAMPLES = (
    'draftc generate runs/mine --target Qwen/Qwen3-4B --prompt "The first primes are" --compare',
    "draftc generate runs/mine --target models/qwen3-4b --chat --prompt - --temperature 0.7 < question.txt",
)


class Dtype(StrEnum):
    """Dtypes that models can be loaded in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


def generate(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder with weights.", metavar="BUNDLE")],
    target: Annotated[str, typer.Option(help="Folder or name of the causal language model that the draft serves.")],
    prompt: Annotated[list[str], typer.Option(help="What to continue; `-` reads it from standard input. Repeatable.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Where every text ends at the latest.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="0: the target's most probable tokens.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, callback=finite, help="Sample from this share of probability.")
    ] = None,
    draft_temperature: Annotated[
        float | None,
        typer.Option(min=0.0, callback=finite, help="Temperature of the proposals; by default the target's."),
    ] = None,
    stop: Annotated[
        list[int] | None, typer.Option(help="Token id that ends a text, repeatable; by default the target's own.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the tokenizer's chat template.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Decode without the draft as well, and compare.")] = False,
    gguf_file: Annotated[str | None, typer.Option(help="Name of the GGUF file in the target's folder.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of both models; auto: as the target is stored.")] = Dtype.auto,
    device: Annotated[Device, typer.Option(help="Where both models run.")] = Device.cpu,
) -> None:
    """Generate text with a draft: the target's own words, in fewer of its passes."""
    options = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "draft_temperature": draft_temperature,
        "stop_token_ids": stop,
        "seed": seed,
    }
    with errors(), refusals():
        with progress("loading"):
            models = load(bundle, target, gguf_file, dtype.value, device.value)
        texts = [standard_input() if text == "-" else text for text in prompt]
        ids, mask = models.inputs(texts, chat)
        found = decoded(models, ids, mask, options)
        show_texts(models, found)
        report(found, plainly(models, ids, mask, options) if compare else None)


def standard_input() -> str:
    """What comes in on standard input. Raises CommandError when it is closed or no text."""
    try:
        return "" if sys.stdin is None else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is no text in {error.encoding}", "send the prompt as UTF-8") from None


@dataclass(frozen=True, slots=True)
class Models:
    """What a run needs, on one device."""

    draft: Any
    target: Any
    tokenizer: Any

    def inputs(self, texts: list[str], chat: bool) -> "tuple[Tensor, Tensor]":
        """Token ids `[B, P]` of `texts` and their attention mask."""
        from draftc.loading import encoded

        if chat:
            texts = [self.templated(text) for text in texts]
        ids, mask = encoded(texts, self.tokenizer)
        return ids.to(self.target.device), mask.to(self.target.device)

    def templated(self, text: str) -> str:
        """`text` as what a user says. Raises CommandError without a template."""
        if not self.tokenizer.chat_template:
            raise CommandError("the target's tokenizer has no chat template", "leave --chat out")
        said = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what loading and generation refuse into a message with its way out."""
    from draftc.loading import LoadError
    from draftc.runtime.generation.errors import GenerationError

    try:
        yield
    except (LoadError, GenerationError) as error:
        raise CommandError(error.message, error.help) from None


def load(bundle: Path, target: str, gguf_file: str | None, dtype: str, device: str) -> Models:
    """Load both models and the tokenizer."""
    import torch
    from transformers.utils import logging

    from draftc import loading

    require_device(device)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    source = loading.Source(target, gguf_file)
    model = loading.load_target(source, dtype if dtype == "auto" else getattr(torch, dtype), device)
    draft = loading.load_draft(bundle, model.get_input_embeddings().weight.dtype, device)
    return Models(draft, model, loading.load_tokenizer(source))


def decoded(models: Models, ids: "Tensor", mask: "Tensor", options: dict[str, Any]) -> "Generation":
    """Generate; a single text goes to standard output as it comes."""
    from transformers import TextStreamer

    from draftc.runtime.generate import generate as decode

    streamer = TextStreamer(models.tokenizer, skip_prompt=True, skip_special_tokens=True) if len(ids) == 1 else None
    return decode(models.draft, models.target, ids, mask, streamer=streamer, **options)


def show_texts(models: Models, found: "Generation") -> None:
    """Print the texts of a batch, which were not printed as they came."""
    if len(found.new_tokens) == 1:
        return
    for number, line in enumerate(found.new_tokens, start=1):
        typer.echo(f"--- {number}")
        typer.echo(models.tokenizer.decode(list(line), skip_special_tokens=True))


@dataclass(frozen=True, slots=True)
class Plain:
    """The target's own decoding of the same prompts."""

    new_tokens: tuple[tuple[int, ...], ...]
    seconds: float


def plainly(models: Models, ids: "Tensor", mask: "Tensor", options: dict[str, Any]) -> Plain:
    """Decode without the draft, by transformers' own loop."""
    settings = {"max_new_tokens": options["max_new_tokens"], "do_sample": options["temperature"] > 0}
    if settings["do_sample"]:
        settings |= {
            "temperature": options["temperature"],
            "top_k": options["top_k"] or 0,
            "top_p": options["top_p"] or 1.0,
        }
    if options["stop_token_ids"]:
        settings["eos_token_id"] = options["stop_token_ids"]
    began = time.perf_counter()
    rows = models.target.generate(ids, attention_mask=mask.long(), **settings)[:, ids.shape[1] :].tolist()
    seconds = time.perf_counter() - began
    stops = settings.get("eos_token_id") or models.target.generation_config.eos_token_id
    return Plain(tuple(until_stop(row, stops) for row in rows), seconds)


def until_stop(row: list[int], stops: int | list[int] | None) -> tuple[int, ...]:
    """`row` up to its first stop token, without the padding behind it."""
    known = [stops] if isinstance(stops, int) else stops or ()
    ends = [at for at, token in enumerate(row) if token in known]
    return tuple(row[: ends[0] + 1] if ends else row)


def report(found: "Generation", plain: Plain | None) -> None:
    """Print how the run went and, where there is one, how the plain one did."""
    count = sum(map(len, found.new_tokens))
    rows = [("with the draft", count, found.rounds, found.mean_acceptance_length, found.seconds)]
    if plain is not None:
        passes = max(map(len, plain.new_tokens)) - 1
        rows.append(("without", sum(map(len, plain.new_tokens)), passes, 1.0, plain.seconds))
    cells = [(name, str(n), str(p), f"{a:.2f}", f"{s:.2f}", f"{n / s:.1f}") for name, n, p, a, s in rows]
    table("", HEADINGS, cells, HEADINGS[1:])
    if plain is not None:
        typer.echo(agreement(found.new_tokens, plain.new_tokens))


HEADINGS = ("", "new tokens", "passes after the prompt", "acceptance length", "seconds", "tokens/s")


def agreement(ours: tuple[tuple[int, ...], ...], theirs: tuple[tuple[int, ...], ...]) -> str:
    """Whether both decodings gave the same tokens, and where the first difference is."""
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        if own != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other))
            )
            return f"text {number} differs from plain decoding at its new token {at + 1}"
    return "the tokens are those of plain decoding"
