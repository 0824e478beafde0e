"""Examples from JSON lines: text, conversations, prompts with completions, or tokens, by the target's own tokenizer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from draftc.runtime.train.errors import Place, TrainingDataError, TrainingError
from draftc.runtime.train.examples import Example, require_tokens

FORMS = "text, messages, prompt with completion, or input_ids"


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows become tokens: the target's `tokenizer` and `vocab_size`, and the most tokens of an example."""

    tokenizer: PreTrainedTokenizerBase | None
    vocab_size: int
    max_length: int

    def words(self, place: Place) -> PreTrainedTokenizerBase:
        """The tokenizer. Raises `TrainingDataError` when a row needs one and the target has none."""
        if self.tokenizer is None:
            raise TrainingDataError(place, "it is text, and this target has no tokenizer: give input_ids")
        return self.tokenizer


def text_examples(path: Path, reading: Reading) -> list[Example]:
    """All rows of the `.jsonl` files that `path` is or holds, tokenised and checked.

    Raises `TrainingDataError` for the first row that cannot be used, `TrainingError` when there is no row.
    """
    found = [example_of(row, place, reading) for file in text_files(path) for place, row in rows_of(file)]
    if not found:
        raise TrainingError(f"{path} holds no row of training data")
    return found


def text_files(path: Path) -> list[Path]:
    """`path` itself, or the `.jsonl` files in it."""
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def rows_of(file: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of `file` with their places; empty lines are none."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TrainingError(f"{file} is no text in UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise TrainingError(f"{file} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = Place(file, number)
            yield place, row_of(line, place)


def row_of(line: str, place: Place) -> dict[str, Any]:
    """One row. Raises `TrainingDataError` when it is no JSON object."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise TrainingDataError(place, f"it is no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise TrainingDataError(place, f"it is no JSON object but a {type(row).__name__}")
    return row


def example_of(row: dict[str, Any], place: Place, reading: Reading) -> Example:
    """The example in `row`. Raises `TrainingDataError` for a row of no known form, or one that supervises nothing."""
    if "input_ids" in row:
        ids, mask = tokens_of(row, place)
    elif isinstance(row.get("messages"), list):
        ids, mask = conversation(row["messages"], place, reading.words(place))
    elif "prompt" in row and "completion" in row:
        ids, mask = completion(row["prompt"], row["completion"], place, reading.words(place))
    elif isinstance(row.get("text"), str):
        ids = reading.words(place)(row["text"])["input_ids"]
        mask = [1.0] * len(ids)
    else:
        raise TrainingDataError(place, f"it has {', '.join(row) or 'no key'}; a row has {FORMS}")
    tensors = torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.float32)
    return require_tokens(Example(*tensors, place).truncated(reading.max_length), reading.vocab_size)


def tokens_of(row: dict[str, Any], place: Place) -> tuple[list[int], list[float]]:
    """Tokens that are given, and their mask, all ones unless given."""
    ids: Any = row["input_ids"]
    mask: Any = row.get("loss_mask", [1.0] * len(ids) if isinstance(ids, list) else None)
    if not is_list_of(ids, int) or not is_list_of(mask, (int, float)):
        raise TrainingDataError(place, "input_ids is a list of integers and loss_mask one of numbers")
    return ids, [float(value) for value in mask]


def is_list_of(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether `value` is a list of `kinds` only."""
    return isinstance(value, list) and all(isinstance(item, kinds) and not isinstance(item, bool) for item in value)


def completion(
    prompt: Any, answer: Any, place: Place, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[float]]:
    """A prompt, which is not supervised, and its completion, which is; both text, or both lists of messages."""
    if isinstance(prompt, list) and isinstance(answer, list):
        ids, mask = conversation([*prompt, *answer], place, tokenizer)
        start = len(rendered(prompt, place, tokenizer, True, tokenize=True))
        return ids, [0.0] * min(start, len(ids)) + mask[start:]
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise TrainingDataError(place, "prompt and completion are both text, or both lists of messages")
    before, after = tokenizer(prompt)["input_ids"], tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*before, *after], [0.0] * len(before) + [1.0] * len(after)


def conversation(
    messages: list[Any], place: Place, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[float]]:
    """A conversation by the chat template; what the assistant says is supervised.

    Turns are found in the rendered text, where the conversation up to a turn begins it. A template that renders earlier
    turns otherwise once later ones follow (some drop their reasoning) leaves only those supervised that it keeps.
    """
    whole = rendered(messages, place, tokenizer, False)
    spans = []
    for number, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = rendered(messages[:number], place, tokenizer, True)
        through = rendered(messages[: number + 1], place, tokenizer, False)
        if whole.startswith(through) and through.startswith(before):
            spans.append((len(before), len(through)))
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    said = [any(a <= start < b for a, b in spans) for start, stop in encoded["offset_mapping"]]
    return encoded["input_ids"], [float(value) for value in said]


def rendered(
    messages: list[Any], place: Place, tokenizer: PreTrainedTokenizerBase, prompts: bool, tokenize: bool = False
) -> Any:
    """`messages` by the chat template, `prompts` with the assistant's opening behind them.

    Raises `TrainingDataError` for messages that the template refuses, and for a tokenizer without one.
    """
    if not all(isinstance(message, dict) and "role" in message for message in messages):
        raise TrainingDataError(place, "every message is an object with a role")
    if not messages:
        return [] if tokenize else ""
    from jinja2 import TemplateError

    try:
        found: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=prompts, tokenize=tokenize)
    except (ValueError, TypeError, TemplateError) as error:
        raise TrainingDataError(place, f"the chat template refuses it: {error}") from None
    return found["input_ids"] if tokenize and not isinstance(found, list) else found
