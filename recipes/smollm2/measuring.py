"""What a trained draft is worth: accepted tokens, time of a draft step, tokens a second, the target's own text."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from draftc.loading import Source, encoded, load_draft, load_target, load_tokenizer
from draftc.runtime.generate import generate, start_decoding
from recipes.smollm2.corpus import asked
from recipes.smollm2.intervals import acceptance, survival
from recipes.smollm2.settings import Budget


@dataclass(frozen=True)
class Bench:
    """A loaded target, in `dtype` and in float32, and its prompts; what it says alone is found when first asked for."""

    target: Any
    exact_target: Any
    words: Any
    texts: tuple[str, ...]
    budget: Budget
    device: str
    dtype: torch.dtype

    @cached_property
    def greedy(self) -> list[tuple[int, ...]]:
        """Its greedy tokens in float32 after each of the first `exact` prompts."""
        return plain_text(self.exact_target, self.words, self.texts[: self.budget.exact], self.budget, self.device)

    @cached_property
    def plain_tokens_per_second(self) -> float:
        """Its speed without a draft, one prompt at a time."""

        def answer(text: str) -> tuple[int, ...]:
            return plain_text(self.target, self.words, [text], self.budget, self.device)[0]

        return speed_of(answer, self.texts[: self.budget.timed])

    def place(self, dtype: torch.dtype) -> str:
        """What a part is measured on."""
        machine = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return f"{machine}, {str(dtype).removeprefix('torch.')}"


def open_bench(folder: Path, texts: Sequence[str], budget: Budget, device: str, dtype: torch.dtype) -> Bench:
    """Load the target in `folder`."""
    source = Source(str(folder))
    words = load_tokenizer(source)
    prompts = tuple(asked(words, text) for text in texts)
    target, exact = load_target(source, dtype, device), load_target(source, torch.float32, device)
    return Bench(target, exact, words, prompts, budget, device, dtype)


def speed_of(
    answer: Callable[[str], Sequence[int]], texts: Sequence[str], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Tokens a second of `answer`, a text at a time, after a first call that is not timed: it loads kernels."""
    answer(texts[0])
    began = clock()
    count = sum(len(answer(text)) for text in texts)
    return count / (clock() - began)


def plain_text(target: Any, words: Any, texts: Sequence[str], budget: Budget, device: str) -> list[tuple[int, ...]]:
    """The target's own greedy tokens after each of `texts`, without stopping."""
    ids, mask = (value.to(device) for value in encoded(texts, words))
    settings = {"max_new_tokens": budget.new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    rows = target.generate(ids, attention_mask=mask.long(), **settings)
    return [tuple(row) for row in rows[:, ids.shape[1] :].tolist()]


def measure(bench: Bench, bundle: Path, parts: Iterable[str]) -> dict[str, Any]:
    """The asked `PARTS` about the draft in `bundle`, as plain numbers, and what each was measured on."""
    found: dict[str, Any] = {}
    for part in parts:
        found |= PARTS[part](bench, bundle)
    exact = {"text": bench.place(torch.float32)}
    return {**found, "measured_on": {part: exact.get(part, bench.place(bench.dtype)) for part in parts}}


def accepted(bench: Bench, bundle: Path) -> dict[str, Any]:
    """How much of what it drafts is accepted; `lengths` has every round of every prompt."""
    draft = load_draft(bundle, bench.dtype, bench.device)
    ids, mask = (value.to(bench.device) for value in encoded(bench.texts, bench.words))
    # Rows stop where the target ends its answer: no draft has learnt what would come after it.
    whole = generate(draft, bench.target, ids, mask, max_new_tokens=bench.budget.new_tokens)
    lengths = [list(line) for line in whole.acceptance_lengths]
    return {
        "parameters": sum(parameter.numel() for parameter in draft.parameters()),
        "acceptance_length": acceptance(lengths).rounded(),
        "stood": [round(share, 3) for share in survival(lengths, draft.slots.drafted)],
        "lengths": lengths,
    }


def speed(bench: Bench, bundle: Path) -> dict[str, Any]:
    """Tokens a second on one prompt at a time, and the median time of a proposal, heads included."""
    draft = load_draft(bundle, bench.dtype, bench.device)
    spans: list[float] = []
    tokens, seconds = 0, 0.0
    for number, text in enumerate((bench.texts[0], *bench.texts[: bench.budget.timed])):
        ids, mask = (value.to(bench.device) for value in encoded([text], bench.words))
        began = time.perf_counter()
        run = start_decoding(draft, bench.target, ids, mask, max_new_tokens=bench.budget.new_tokens, stop_token_ids=())
        # A run makes its own drafter, so the clock goes around what that one proposes.
        run.drafter.propose = timed(run.drafter.propose, spans, bench.device)  # type: ignore[method-assign]
        made = sum(len(each.tokens.get(0, ())) for each in run.rounds())
        if number == 0:
            spans.clear()
            continue
        tokens, seconds = tokens + made, seconds + time.perf_counter() - began
    return {
        "draft_step_ms": round(1e3 * statistics.median(spans), 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "times_plain": round(tokens / seconds / bench.plain_tokens_per_second, 3),
    }


def timed(propose: Callable[..., Any], spans: list[float], device: str) -> Callable[..., Any]:
    """`propose`, its seconds added to `spans`, the card waited for before and after."""

    def run(*inputs: Any) -> Any:
        synchronise(device)
        began = time.perf_counter()
        found = propose(*inputs)
        synchronise(device)
        spans.append(time.perf_counter() - began)
        return found

    return run


def synchronise(device: str) -> None:
    """Wait for the card, if it is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def exact_text(bench: Bench, bundle: Path) -> dict[str, Any]:
    """Whether decoding in float32 gives the target's own greedy tokens."""
    draft = load_draft(bundle, torch.float32, bench.device)
    ids, mask = (value.to(bench.device) for value in encoded(bench.texts[: bench.budget.exact], bench.words))
    found = generate(draft, bench.exact_target, ids, mask, max_new_tokens=bench.budget.new_tokens, stop_token_ids=())
    return {"greedy_text_is_the_targets": list(found.new_tokens) == bench.greedy}


PARTS: dict[str, Callable[[Bench, Path], dict[str, Any]]] = {
    "acceptance": accepted,
    "speed": speed,
    "text": exact_text,
}
