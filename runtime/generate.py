"""Speculative generation with any causal language model of transformers whose cache can be cropped."""

import time
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList

from draftc.runtime.generation.drafter import Drafter
from draftc.runtime.generation.errors import PromptError
from draftc.runtime.generation.fit import require_fit, taps_of_draft
from draftc.runtime.generation.history import own_processors
from draftc.runtime.generation.loop import Decoding
from draftc.runtime.generation.prompts import Prompts, limits_of, padded_prompts, warn_beyond_positions
from draftc.runtime.generation.reader import TargetReader
from draftc.runtime.generation.result import Generation, Round
from draftc.runtime.generation.sampling import make_judge


class Streamer(Protocol):
    """Where tokens go as they come: transformers' `TextStreamer` and its like."""

    def put(self, value: Tensor) -> None:
        """Take the prompt `[1, P]`, then new tokens `[n]`."""

    def end(self) -> None:
        """Take notice that there are no more."""


def start_decoding(
    draft: Any,
    target: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int = 256,
    stop_token_ids: int | Collection[int] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    draft_temperature: float | None = None,
    logits_processor: LogitsProcessorList | None = None,
    seed: int | None = None,
) -> Decoding:
    """Check everything that can be checked before the first step, and return the run; see `generate`."""
    require_fit(draft, target)
    limits = limits_of(max_new_tokens, own_stops(target) if stop_token_ids is None else stop_token_ids)
    prompts = padded_prompts(input_ids, attention_mask, pad_of(target))
    warn_beyond_positions(target, prompts, limits)
    generator = None if seed is None else torch.Generator(input_ids.device).manual_seed(seed)
    judge = make_judge(temperature, top_k, top_p, draft_temperature, generator)
    reader = TargetReader(target, taps_of_draft(draft), prompts.pads)
    drafter = Drafter(draft, target.get_input_embeddings(), target.get_output_embeddings(), prompts.pads)
    processors = own_processors(target) if logits_processor is None else logits_processor
    return Decoding(reader, drafter, judge, processors, limits, prompts)


def stream(
    draft: Any, target: Any, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Iterator[Round]:
    """Decode as `generate` does, with its options, and give every round as it comes."""
    return start_decoding(draft, target, input_ids, attention_mask, **options).rounds()


def generate(
    draft: Any,
    target: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> Generation:
    """Decode `input_ids` with `target`, helped by `draft`: the target's own tokens, in fewer of its passes.

    Args:
        draft: a draft model of any family, a compiled one or one loaded from a bundle; dtype and device of the target.
        target: a causal language model of transformers, in evaluation mode, whose cache can be cropped.
        input_ids: `[B, P]` prompts; rows of different length are padded, on either side.
        attention_mask: `[B, P]`, zero where a prompt is padded; None when none is.
        streamer: takes the prompt and then the tokens of every round; for one prompt only.
        options: `max_new_tokens` (256); `stop_token_ids`, one or several, each ends its row and belongs to it (those of
            the target's generation configuration; `()` for none); `temperature` (0.0: the target's greedy tokens;
            else samples of the target's distribution); `top_k`, `top_p` as in transformers; `draft_temperature` of
            proposals (that of the target; 0.0: the draft's most probable tokens); `logits_processor`, a
            `LogitsProcessorList` that sees each row's own tokens (the repetition penalty of the target's generation
            configuration); `seed` of all draws.

    Returns:
        sequences, acceptance lengths of every round, and the time it took.

    Raises:
        DraftMismatchError: width, vocabulary, layers, dtype or device of draft and target differ.
        StatefulTargetError: the target's cache cannot be cropped.
        UnfilledVocabularyError: the maps of a reduced vocabulary are empty.
        PromptError: a prompt without tokens, shapes that do not fit, no room for a token, a streamer for several rows.
        GenerationError: sampling options out of range; a batch on a cache whose rows cannot move.

    Warns:
        BeyondPositionsWarning: the longest text may outgrow the target's `max_position_embeddings`.

    """
    began = time.perf_counter()
    run = start_decoding(draft, target, input_ids, attention_mask, **options)
    if streamer is not None and len(run.rows) > 1:
        raise PromptError(f"a streamer takes one prompt, not {len(run.rows)}", "use `stream`, whose rounds name rows")
    if streamer is not None:
        streamer.put(run.prompts.tokens.cpu())
    rounds = []
    for each in run.rounds():
        rounds.append(each)
        if streamer is not None:
            streamer.put(torch.tensor(each.tokens[0]))
    if streamer is not None:
        streamer.end()
    return gathered(run.prompts, rounds, pad_of(target), time.perf_counter() - began)


def gathered(prompts: Prompts, rounds: list[Round], pad_token_id: int, seconds: float) -> Generation:
    """The result of a run from its rounds."""
    numbers = range(len(prompts.texts))
    new = tuple(tuple(t for each in rounds for t in each.tokens.get(row, ())) for row in numbers)
    lengths = tuple(
        tuple(each.acceptance_lengths[row] for each in rounds if row in each.acceptance_lengths) for row in numbers
    )
    longest = max(map(len, new))
    tail = torch.tensor([[*line, *[pad_token_id] * (longest - len(line))] for line in new])
    sequences = torch.cat([prompts.tokens, tail.to(prompts.tokens.device)], dim=1)
    return Generation(sequences, new, lengths, len(rounds) - 1, seconds)


def own_stops(target: Any) -> Collection[int]:
    """The end-of-sequence tokens of the target's generation configuration."""
    stops = target.generation_config.eos_token_id
    return () if stops is None else [stops] if isinstance(stops, int) else stops


def pad_of(target: Any) -> int:
    """What fills rows that are shorter than others: the target's padding token, else its first stop token, else 0."""
    pad = target.generation_config.pad_token_id
    return int(pad) if pad is not None else next(iter(own_stops(target)), 0)
