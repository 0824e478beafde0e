"""`draftc generate`: text as it comes, how fast it came, plain decoding beside it, and refusals in words."""

import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from draftc.cli import app
from draftc.commands.failure import CommandError
from draftc.commands.generate import standard_input
from draftc.compiler import api
from draftc.compiler.program import Options
from draftc.spec.layout import Target
from tests.compiler.support import layout
from tests.generation.support import DEPTH, MASK, VOCABULARY, WIDTH, plain_tokens, small_target

WORDS = [f"w{chr(97 + number // 10)}{chr(97 + number % 10)}" for number in range(VOCABULARY)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with its tokenizer, and bundles for it: `good`, `bare` without weights, `other` for another target."""
    folder = tmp_path_factory.mktemp("stored")
    small_target().save_pretrained(folder / "target")
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="wab"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="wab").save_pretrained(folder / "target")
    for name, target, weights in (
        ("good", Target(WIDTH, DEPTH, VOCABULARY), "random"),
        ("bare", Target(WIDTH, DEPTH, VOCABULARY), None),
        ("other", Target(WIDTH, DEPTH, VOCABULARY + 8), "random"),
    ):
        facts = layout(
            "near",
            "scan",
            name=name,
            target=target,
            target_layer_ids=(0, 2),
            mask_token_id=MASK,
            draft_vocab_size=target.vocab_size,
        )
        api.compile(facts, Options(packages={"torch": "2.13.0"})).write(folder / name, weights=weights)
    return folder


def ran(stored: Path, bundle: str, *arguments: str) -> str:
    command = ["generate", str(stored / bundle), "--target", str(stored / "target"), *arguments]
    found = CliRunner().invoke(app, command, catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def wanted(text: str, count: int) -> str:
    """What the target itself says after `text`."""
    import torch

    ids = torch.tensor([[WORDS.index(word) for word in text.split()]])
    new = plain_tokens(small_target(), ids, torch.ones_like(ids), count)[0]
    return " ".join(WORDS[token] for token in new)


def test_text_and_figures(stored: Path) -> None:
    shown = ran(stored, "good", "--prompt", "waf wah wbb", "--max-new-tokens", "9", "--dtype", "float64", "--compare")
    assert wanted("waf wah wbb", 9) in shown
    assert "the tokens are those of plain decoding" in shown
    for heading in ("new tokens", "acceptance length", "tokens/s", "with the draft", "without"):
        assert heading in shown


def test_a_batch_is_shown_row_by_row(stored: Path) -> None:
    shown = ran(stored, "good", "--prompt", "waf wah", "--prompt", "waj", "--max-new-tokens", "7", "--dtype", "float64")
    first, second = shown.split("--- 1\n")[1].split("--- 2\n")
    assert wanted("waf wah", 7) in first
    assert wanted("waj", 7) in second
    assert "without" not in shown


def test_a_seed_repeats_a_sample_and_stop_tokens_end_it(stored: Path) -> None:
    options = ("--prompt", "waf", "--max-new-tokens", "9", "--temperature", "1.5", "--top-k", "20", "--seed", "3")
    texts = [ran(stored, "good", *options).split("\n")[0] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0].split()) == 9
    stop = WORDS.index(texts[0].split()[4])
    stopped = ran(stored, "good", *options, "--stop", str(stop)).split("\n")[0]
    assert stopped == " ".join(texts[0].split()[: texts[0].split().index(WORDS[stop]) + 1])


def test_the_prompt_may_come_from_standard_input(stored: Path) -> None:
    command = ["generate", str(stored / "good"), "--target", str(stored / "target"), "--prompt", "-"]
    shown = CliRunner().invoke(app, [*command, "--max-new-tokens", "4", "--dtype", "float64"], input="waf wah\n")
    assert wanted("waf wah", 4) in shown.stdout


@pytest.mark.parametrize(
    ("bundle", "arguments", "message"),
    [
        ("other", ("--prompt", "waf"), "for a vocabulary of 108 tokens; this target has 100"),
        (
            "bare",
            ("--prompt", "waf"),
            "has no weights\n  = help: train the draft, or compile it",
        ),
        ("target/..", ("--prompt", "waf"), "is no bundle: it has no config.json"),
        ("good", ("--prompt", ""), "a prompt is empty"),
        ("good", ("--prompt", "waf", "--chat"), "has no chat template"),
        ("good", ("--prompt", "waf", "--gguf-file", "none.gguf"), "target .*"),
    ],
)
def test_refusals_say_what_to_do(stored: Path, bundle: str, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        ran(stored, bundle, *arguments)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", "no tensors"),
        ("modeling_good.py", "def broken("),
        ("modeling_good.py", "raise KeyError('lost')"),
        ("config.json", "{"),
    ],
)
def test_a_broken_bundle_is_no_fault_of_draftc(stored: Path, tmp_path: Path, file: str, content: str) -> None:
    broken = tmp_path / f"{abs(hash(content))}-broken"  # transformers keeps the code of a folder by the folder's name
    shutil.copytree(stored / "good", broken)
    (broken / file).write_text(content, encoding="utf-8")
    with pytest.raises(CommandError, match=r"error: bundle .*broken: .*\n  = help: `draftc verify` runs its code"):
        ran(stored, str(broken), "--prompt", "waf")


def test_a_folder_without_a_model_is_no_target(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"error: target .*\n  = help: give the folder or the name"):
        ran(stored, "good", "--prompt", "waf", "--target", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "int8"), "'int8' is not one of 'auto'"),
        (("--device", "tpu"), "'tpu' is not one of 'cpu', 'cuda'"),
        (("--temperature", "nan"), "nan is no finite number"),
    ],
)
def test_options_that_mean_nothing(arguments: tuple[str, ...], message: str) -> None:
    found = CliRunner().invoke(app, ["generate", "nowhere", "--target", "t", "--prompt", "waf", *arguments])
    assert found.exit_code == 2
    assert message in " ".join(found.output.replace("│", " ").split())


def test_a_closed_standard_input_is_an_empty_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert standard_input() == ""
