"""Data that cannot be used are refused with their file and row; data that can become the tokens that they should."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftc.runtime.train.capture import capture
from draftc.runtime.train.captured import CapturedRecords, CaptureFacts, is_capture, open_capture, read_manifest
from draftc.runtime.train.errors import TrainingDataError, TrainingError
from draftc.runtime.train.examples import Example
from draftc.runtime.train.feed import anchor_seed
from draftc.runtime.train.frozen import stored_vocabulary, vocabulary_of
from draftc.runtime.train.taps import Taps, tapped
from draftc.runtime.train.text import Reading, text_examples
from tests.training.material import write_target

WORDS = ["<user>", "<assistant>", "<end>", "hello", "there", "how", "are", "you", "fine", "thanks", "bye"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="hello"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(tokenizer_object=inner)
    found.chat_template = TEMPLATE
    return found


def read(path: Path, tokenizer: PreTrainedTokenizerFast | None, *rows: Any, length: int = 64) -> list[Example]:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return text_examples(path, Reading(tokenizer, len(WORDS), length))


def words(example: Example) -> list[tuple[str, float]]:
    return [(WORDS[i], m) for i, m in zip(example.input_ids.tolist(), example.loss_mask.tolist(), strict=True)]


def test_text_is_supervised_whole(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    (example,) = read(tmp_path / "a.jsonl", tokenizer, {"text": "how are you"})
    assert words(example) == [("how", 1), ("are", 1), ("you", 1)]
    assert str(example.place) == f"{tmp_path / 'a.jsonl'}, row 1"


def test_completions_are_supervised_and_prompts_are_not(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    message = {"role": "user", "content": "how are you"}, {"role": "assistant", "content": "fine thanks"}
    plain, chat = read(
        tmp_path / "a.jsonl",
        tokenizer,
        {"prompt": "how are you", "completion": "fine thanks"},
        {"prompt": [message[0]], "completion": [message[1]]},
    )
    assert words(plain) == [("how", 0), ("are", 0), ("you", 0), ("fine", 1), ("thanks", 1)]
    assert [word for word, supervised in words(chat) if supervised] == ["fine", "thanks", "<end>"]


def test_what_the_assistant_says_is_supervised(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [("user", "hello there"), ("assistant", "hello"), ("user", "how are you"), ("assistant", "fine thanks")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (example,) = read(tmp_path / "a.jsonl", tokenizer, row)
    assert "".join(str(int(m)) for _, m in words(example)) == "0000" + "0" + "11" + "00000" + "0" + "111"


def test_a_template_that_drops_earlier_turns_leaves_the_last(tmp_path: Path) -> None:
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="hello"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(tokenizer_object=inner)
    found.chat_template = (
        "{% for m in messages %}<{{ m.role }}> {% if loop.last or m.role == 'user' %}{{ m.content }} {% endif %}<end> "
        "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    turns = [("user", "hello"), ("assistant", "you there"), ("user", "bye"), ("assistant", "bye thanks")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (example,) = read(tmp_path / "a.jsonl", found, row)
    assert [word for word, supervised in words(example) if supervised] == ["bye", "thanks", "<end>"]


def test_tokens_are_cut_at_the_length(tmp_path: Path) -> None:
    (example,) = read(tmp_path / "a.jsonl", None, {"input_ids": list(range(9)), "loss_mask": [1] * 9}, length=5)
    assert example.input_ids.tolist() == [0, 1, 2, 3, 4]


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no JSON": ('{"text": ', "no JSON"),
    "no object": ("[1, 2]", "list"),
    "no known key": ({"content": "how are you"}, "content"),
    "a token beyond the vocabulary": ({"input_ids": [1, 2, 11]}, "11"),
    "a negative token": ({"input_ids": [1, -2, 3]}, "-2"),
    "a word for a token": ({"input_ids": [1, "2", 3]}, "integers"),
    "a truth for a token": ({"input_ids": [1, True, 3]}, "integers"),
    "masks of another length": ({"input_ids": [1, 2, 3], "loss_mask": [1, 1]}, "one length"),
    "no two supervised in a row": ({"input_ids": [1, 2, 3], "loss_mask": [1, 0, 1]}, "no two supervised"),
    "none at all": ({"input_ids": []}, "no two supervised"),
    "a mask that is no number": ({"input_ids": [1, 2], "loss_mask": [1, float("nan")]}, "not finite"),
    "supervised beyond the cut": ({"input_ids": [1] * 80, "loss_mask": [0] * 70 + [1] * 10}, "no two supervised"),
    "a role that is missing": ({"messages": [{"content": "hello"}]}, "role"),
    "no turn of the assistant": ({"messages": [{"role": "user", "content": "hello you"}]}, "no two supervised"),
    "mixed forms": ({"prompt": "hello", "completion": []}, "both"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused_by_file_and_row(name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    row, words = BAD_ROWS[name]
    with pytest.raises(TrainingDataError, match=words) as caught:
        read(tmp_path / "a.jsonl", tokenizer, {"text": "how are you"}, "", row)
    assert str(caught.value).startswith(f"{tmp_path / 'a.jsonl'}, row 3: ")


def test_files_that_hold_nothing_are_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TrainingError, match="no row"):
        read(tmp_path / "a.jsonl", tokenizer)
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe{}")
    with pytest.raises(TrainingError, match="UTF-8"):
        text_examples(tmp_path / "b.jsonl", Reading(tokenizer, 9, 9))
    with pytest.raises(TrainingError, match="cannot be read"):
        text_examples(tmp_path / "c.jsonl", Reading(tokenizer, 9, 9))
    with pytest.raises(TrainingDataError, match="no tokenizer"):
        read(tmp_path / "d.jsonl", None, {"text": "how are you"})


def record(**changes: Any) -> dict[str, Any]:
    usual = {
        "input_ids": torch.arange(5),
        "loss_mask": torch.ones(5),
        "hidden_states": torch.arange(30.0).view(1, 5, 6),
        "target_last_hidden_states": torch.arange(15.0).view(5, 3),
    }
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


WANTED = CaptureFacts((0, 1), 6, 3, 11)


def write_record(folder: Path, number: int, zipped: bool = False, **changes: Any) -> None:
    path = folder / "rows_0-2000" / f"data_{number}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(record(**changes), path)
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_public_records_are_read_in_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_record(tmp_path, number, zipped=number == 2, input_ids=torch.arange(5) + number // 2)
    assert is_capture(tmp_path)
    found = open_capture(tmp_path, WANTED, needs_final=True, max_length=4)
    assert isinstance(found, CapturedRecords)
    assert [found[i].input_ids[0].item() for i in range(len(found))] == [0, 1, 5]
    assert found[0].taps.shape == (4, 6)
    assert found[0].final.tolist() == torch.arange(15.0).view(5, 3)[:4].tolist()
    assert open_capture(tmp_path, WANTED, needs_final=False, max_length=4)[0].final is None


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({"hidden_states": torch.zeros(5, 7)}, r"\[5, 7\] and must be \[5, 6\]"),
    "another length": ({"hidden_states": torch.zeros(4, 6)}, r"\[4, 6\]"),
    "NaN": ({"hidden_states": torch.full((5, 6), float("nan"))}, "not finite"),
    "infinite final": ({"target_last_hidden_states": torch.full((5, 3), float("inf"))}, "not finite"),
    "no final": ({"target_last_hidden_states": None}, "target_last_hidden_states"),
    "no tokens": ({"input_ids": None}, "input_ids"),
    "a list": ({"loss_mask": [1, 1]}, "loss_mask"),
    "too many dimensions": ({"hidden_states": torch.zeros(2, 5, 6)}, r"\[2, 5, 6\]"),
    "apart": ({"loss_mask": torch.tensor([1.0, 0, 1, 0, 1])}, "no two supervised"),
    "mask of another length": ({"loss_mask": torch.ones(4)}, "one length"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_refused_by_file(name: str, tmp_path: Path) -> None:
    changes, words = BAD_RECORDS[name]
    write_record(tmp_path, 0)
    write_record(tmp_path, 1, **changes)
    found = open_capture(tmp_path, WANTED, needs_final=True, max_length=64)
    assert found[0].taps is not None
    with pytest.raises(TrainingDataError, match=words) as caught:
        found[1]
    assert str(caught.value).startswith(str(tmp_path / "rows_0-2000" / "data_1.ckpt"))


@pytest.mark.parametrize("content", [b"", b"no record", torch.nn.Linear])
def test_files_that_are_no_records_are_refused(content: bytes | Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save({"input_ids": content(1, 1)}, path)
    with pytest.raises(TrainingDataError, match="cannot be read"):
        open_capture(tmp_path, WANTED, False, 9)[0]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    lengths = (7, 12, 9, 4, 8)
    return [Example(torch.randint(0, 60, (n,), generator=generator), torch.ones(n), None) for n in lengths]


def test_a_capture_goes_on_where_it_stopped(tmp_path: Path, examples: list[Example]) -> None:
    target = write_target(tmp_path / "target")
    taps = Taps((0, 3))
    facts = CaptureFacts(taps.layer_ids, 64, 32, 64, vocabulary_of(target).fingerprint())
    capture(target, taps, examples[:2], facts, tmp_path / "states", shard_rows=2)
    (tmp_path / "states" / "shard-00001.safetensors").write_bytes(b"cut off")
    capture(target, taps, examples, facts, tmp_path / "states", shard_rows=2, batch_size=2)
    assert [shard.rows for shard in read_manifest(tmp_path / "states").shards] == [2, 2, 1]
    found = open_capture(tmp_path / "states", facts, needs_final=True, max_length=64)
    for index, example in enumerate(examples):
        whole = target(example.input_ids[None], output_hidden_states=True)
        want = torch.cat([whole.hidden_states[1], layer_output(target, 3, example)], dim=-1)[0]
        assert torch.equal(found[index].input_ids, example.input_ids)
        assert torch.allclose(found[index].taps, want, rtol=1e-4, atol=1e-4)
        assert torch.allclose(target.lm_head(found[index].final), whole.logits[0], rtol=1e-4, atol=1e-3)


def layer_output(target: Any, layer: int, example: Example) -> torch.Tensor:
    """What decoder layer `layer` returns: of the last one, the state before the final norm."""
    heard = []
    hook = target.model.layers[layer].register_forward_hook(lambda _m, _i, output: heard.append(output))
    target(example.input_ids[None])
    hook.remove()
    return heard[0] if isinstance(heard[0], torch.Tensor) else heard[0][0]


def test_captures_of_something_else_are_refused(tmp_path: Path, examples: list[Example]) -> None:
    target = write_target(tmp_path / "target")
    facts = CaptureFacts((0, 3), 64, 32, 64, vocabulary_of(target).fingerprint())
    capture(target, Taps((0, 3)), examples[:1], facts, tmp_path / "states")
    other = vocabulary_of(write_target(tmp_path / "other", seed=9)).fingerprint()
    wrongs = {
        "target_layer_ids": CaptureFacts((0, 2), 64, 32, 64, facts.fingerprint),
        "width of the taps": CaptureFacts((0, 3), 32, 32, 64, facts.fingerprint),
        "embeddings of the target": CaptureFacts((0, 3), 64, 32, 64, other),
        "final norm": CaptureFacts((0, 3), 64, 32, 64, facts.fingerprint, final_norm=True),
    }
    for words, wanted in wrongs.items():
        with pytest.raises(TrainingError, match=words):
            open_capture(tmp_path / "states", wanted, False, 64)
    with pytest.raises(TrainingError, match="something else"):
        capture(target, Taps((0, 2)), examples, wrongs["target_layer_ids"], tmp_path / "states")
    (tmp_path / "states" / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TrainingError, match="no manifest"):
        read_manifest(tmp_path / "states")


def test_taps_of_the_last_layer_and_of_none(tmp_path: Path, examples: list[Example]) -> None:
    target = write_target(tmp_path / "target")
    ids = examples[1].input_ids[None]
    raw, normed = (tapped(target, Taps((3,), norm), ids, torch.ones_like(ids)) for norm in (False, True))
    assert torch.equal(normed.taps, normed.final)
    assert torch.allclose(target.model.norm(raw.taps), raw.final)
    with pytest.raises(TrainingError, match="layer 4 is tapped"):
        tapped(target, Taps((4,)), ids, torch.ones_like(ids))


def test_several_streams_are_meant_or_kept() -> None:
    states = torch.arange(24.0).view(1, 2, 3, 4)
    assert torch.equal(Taps((0,)).flat(states), states.mean(2))
    assert Taps((0,), keeps_streams=True).flat(states).tolist() == states.view(1, 2, 12).tolist()


def test_the_stored_vocabulary_is_the_loaded_one(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    stored, loaded = stored_vocabulary(tmp_path / "target"), vocabulary_of(target)
    assert not torch.equal(loaded.embed.weight, loaded.embed.weight.bfloat16().float())
    assert torch.equal(stored.embed.weight, loaded.embed.weight)
    assert torch.equal(stored.lm_head.weight, loaded.lm_head.weight)
    whole = loaded.fingerprint()
    narrow = vocabulary_of(target.to(torch.bfloat16))
    assert stored.fingerprint() == whole == narrow.fingerprint()
    with pytest.raises(TrainingError, match="no safetensors"):
        stored_vocabulary(tmp_path)


def test_seeds_differ_by_epoch_and_example() -> None:
    seeds = {anchor_seed(seed, epoch, index) for seed in range(3) for epoch in range(3) for index in range(30)}
    assert len(seeds) == 270
    assert anchor_seed(1, 2, 3) == anchor_seed(1, 2, 3)
