"""The Python API. What needs torch is imported when it is called."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftc.spec.check import CheckReport, check_text
from draftc.spec.layout import Layout
from draftc.spec.sources import open_source

if TYPE_CHECKING:
    from torch import Tensor

    from draftc.compiler.api import CompiledDraft
    from draftc.compiler.program import Options
    from draftc.runtime.generation.result import Generation

__all__ = ["check", "compile", "generate", "load"]


def check(layout: str | Path) -> CheckReport:
    """Check a layout: a path, `-` for standard input, or the name of a shipped layout.

    The report holds every finding and, when none is an error, the layout. Raises
    `draftc.spec.sources.SourceError` when there is nothing to read.

    >>> [found.code.number for found in check("qwen3-4b-dflash").diagnostics]
    []
    """
    source = open_source(str(layout))
    return check_text(source.data, source.file, source.folder)


def load(layout: str | Path) -> Layout:
    """Return the checked and resolved layout.

    Raises `draftc.spec.diagnostic.LayoutError`, which holds every finding, when the layout has errors.

    >>> load("qwen3-4b-dflash").hidden_size
    2560
    """
    return check(layout).require()


def compile(layout: "str | Path | Layout", options: "Options | None" = None) -> "CompiledDraft":  # noqa: A001
    """Compile a layout, given as for `check` or already loaded; nothing is instantiated.

    `options` (`draftc.compiler.program.Options`) hold the optimisation level, disabled passes, a forced backend, the
    CUDA capability and packages to select for. Raises `LayoutError` for a layout with errors,
    `draftc.compiler.errors.CompileError` for one that cannot be compiled, such as a backend that a layer refuses.

    >>> draft = compile("smollm2-135m-dflash")
    >>> draft.program.stack
    ('ContextLayer', 'ContextLayer', 'ContextLayer')
    """
    from draftc.compiler import api

    if isinstance(layout, Layout):
        return api.compile(layout, options)
    report = check(layout)
    return api.compile(report.require(), options, text=report.text)


def generate(
    draft: Any,
    target: Any,
    prompt: "str | Sequence[str] | Tensor",
    *,
    tokenizer: Any = None,
    gguf_file: str | None = None,
    attention_mask: "Tensor | None" = None,
    **options: Any,
) -> "Generation":
    """Decode with `target`, helped by `draft`: the target's own tokens, or samples of its own distribution.

    `draft` is a model or the folder of a bundle; `target` a causal language model of transformers, or where one is
    stored (`gguf_file` in it, for GGUF); `prompt` a text, several, or token ids `[B, P]` with their `attention_mask`.
    `tokenizer` is the target's, loaded from beside it when it is not given. `options` are those of
    `draftc.runtime.generate.generate`: `max_new_tokens`, `stop_token_ids`, `temperature`, `top_k`, `top_p`,
    `draft_temperature`, `logits_processor`, `seed`, `streamer`.

    Returns sequences, new tokens, acceptance lengths of every round, and the time. Raises
    `draftc.loading.LoadError` for what cannot be loaded, and a `draftc.runtime.generation.errors.GenerationError` for
    a draft and a target that do not fit, a target whose cache cannot be cropped, and options out of range.
    """
    from draftc import loading
    from draftc.runtime.generate import generate as decode

    source = loading.Source(str(target), gguf_file) if isinstance(target, str | Path) else None
    model = target if source is None else loading.load_target(source, "auto", "cpu")
    if isinstance(draft, str | Path):
        table = model.get_input_embeddings().weight
        draft = loading.load_draft(draft, table.dtype, str(table.device))
    if isinstance(prompt, str):
        prompt = [prompt]
    if isinstance(prompt, Sequence):
        words = tokenizer if source is None else tokenizer or loading.load_tokenizer(source)
        if words is None:
            raise loading.LoadError("the prompt is text and there is no tokenizer", "give `tokenizer`, or token ids")
        prompt, attention_mask = loading.encoded(prompt, words)
    place = model.get_input_embeddings().weight.device
    mask = None if attention_mask is None else attention_mask.to(place)
    return decode(draft, model, prompt.to(place), mask, **options)
