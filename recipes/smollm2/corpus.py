"""What drafts learn from: the target's own answers, and the states that it had while it read them."""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import draftc
from draftc.loading import Source, encoded, load_target, load_tokenizer
from draftc.training import capture
from recipes.smollm2.settings import BASELINE, Budget, Variant

LEAST_ANSWER = 12  # tokens; shorter answers hold no block


def store_target(source: Source, folder: Path) -> None:
    """Write the target as a plain folder in float32: one read from GGUF counts as quantised, which is not written."""
    target, words = load_target(source, torch.float32, "cpu"), load_tokenizer(source)
    config = copy.deepcopy(target.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(target)(config)
    plain.load_state_dict(target.state_dict())
    plain.save_pretrained(folder)
    words.save_pretrained(folder)


def asked(words: Any, text: str) -> str:
    """`text` as a user's turn, in the target's chat format."""
    said = [{"role": "user", "content": text}]
    return str(words.apply_chat_template(said, tokenize=False, add_generation_prompt=True))


def spread_out(items: Sequence[str], count: int) -> list[str]:
    """`count` of `items`, evenly spaced."""
    kept = min(count, len(items))
    return [items[number * len(items) // kept] for number in range(kept)]


def answers(
    target: Any, words: Any, texts: Sequence[str], budget: Budget, seed: int
) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of each prompt of `texts` and of one answer of the target, up to its end."""
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": False}
    if budget.temperature:
        sampling = {"do_sample": True, "temperature": budget.temperature, "top_k": 0}
    stop = target.generation_config.eos_token_id
    for start in range(0, len(texts), budget.sampled_at_once):
        part = [asked(words, text) for text in texts[start : start + budget.sampled_at_once]]
        ids, mask = (value.to(target.device) for value in encoded(part, words))
        rows = target.generate(
            ids, attention_mask=mask.long(), max_new_tokens=budget.answer, pad_token_id=0, **sampling
        )
        for prompt, real, row in zip(ids.tolist(), mask.tolist(), rows[:, ids.shape[1] :].tolist(), strict=True):
            whole = row[: row.index(stop) + 1] if stop in row else row
            yield [token for token, there in zip(prompt, real, strict=True) if there], whole


def write_answers(target: Any, words: Any, texts: Sequence[str], budget: Budget, path: Path) -> int:
    """Write rows of tokens with the answers supervised to `path`, and return how many tokens are."""
    supervised = 0
    with path.open("w", encoding="utf-8") as file:
        for sample in range(budget.samples):
            for prompt, answer in answers(target, words, texts, budget, seed=sample):
                if len(answer) >= LEAST_ANSWER:
                    mask = [0] * len(prompt) + [1] * len(answer)
                    file.write(json.dumps({"input_ids": prompt + answer, "loss_mask": mask}) + "\n")
                    supervised += len(answer)
    return supervised


def capture_states(folder: Path, device: str, precision: str) -> int:
    """Capture what every variant reads, since all read the same layers; return the number of rows."""
    compiled = draftc.compile(Variant(BASELINE).path)  # the toy's layers are the same
    found = capture(
        compiled, folder / "target", folder / "data.jsonl", folder / "states", max_length=512, batch_size=64,
        device=device, dtype=precision,
    )  # fmt: skip
    return sum(shard.rows for shard in found.shards)
