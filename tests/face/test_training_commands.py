"""`draftc train` and `draftc capture` at the terminal: a run from files to a bundle, and refusals in one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from draftc.cli import app
from draftc.commands.failure import CommandError
from tests.training.material import write_layout, write_rows, write_target


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    write_rows(write_target(folder / "target"), folder / "data.jsonl", 4, length=12)
    write_layout(folder / "draft.yaml", "context")
    return folder


def call(home: Path, command: str, *arguments: object) -> str:
    usual = [command, home / "draft.yaml", "--target", home / "target", "--device", "cpu", "--precision", "fp32"]
    found = CliRunner().invoke(app, list(map(str, [*usual, *arguments])), env={"DRAFTC_CACHE": str(home / "cache")})
    if isinstance(found.exception, CommandError):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def test_from_text_to_states_to_a_bundle(home: Path, tmp_path: Path) -> None:
    states = tmp_path / "states"
    said = call(home, "capture", "--data", home / "data.jsonl", "--output", states, "--shard-rows", 3)
    assert f"wrote 4 examples in 2 shards to {states}" in said
    arguments = ("--data", states, "--eval-data", home / "data.jsonl", "--steps", 2, "--output", tmp_path / "run")
    said = call(home, "train", *arguments, "--loss", "lk-lambda", "--num-anchors", 3)
    assert "acceptance length" in said
    assert f"wrote {tmp_path / 'run' / 'tiny'}" in said
    again = call(home, "train", *arguments, "--weights", tmp_path / "run" / "tiny", "--no-resume", "--steps", 1)
    assert "wrote" in again
    assert load_file(tmp_path / "run" / "tiny" / "model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (("--data", "data.jsonl", "--loss", "l2"), "there is no loss l2"),
        (("--data", "data.jsonl", "--weights", "nowhere"), "nowhere does not exist"),
        (("--data", "bad.jsonl"), "bad.jsonl, row 2: no two supervised tokens in a row among 2"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(
    home: Path, tmp_path: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "bad.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 2], "loss_mask": [0, 1]}\n')
    with pytest.raises(CommandError, match=words) as caught:
        call(home, "train", *arguments, "--output", tmp_path, "--steps", 1)
    assert caught.value.exit_code == 1
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "'tpu' is not one of 'cpu', 'cuda'"),
        (("--precision", "fp8"), "'fp8' is not one of 'bf16', 'fp32'"),
        (("--spread", "tensor"), "'tensor' is not one of 'ddp', 'fsdp'"),
        (("--learning-rate", "nan"), "nan is no finite number"),
        (("--epochs", "inf"), "inf is no finite number"),
        (("--output", "file"), "file is a file, and a folder is to be written"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_is_loaded(
    terminal, arguments: tuple[str, ...], words: str
) -> None:
    Path("file").touch()
    ran = terminal("train", "nowhere.yaml", "--target", "nowhere", "--data", "nowhere", *arguments)
    assert ran.code == 2
    assert words in ran.words


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a card that is not there")
@pytest.mark.parametrize("command", ["train", "capture"])
def test_a_card_that_is_not_there(terminal, command: str) -> None:
    ran = terminal(command, "x.yaml", "--target", "t", "--data", "d", "--output", "o", "--device", "cuda")
    assert ran.code == 2
    assert "this machine has no CUDA device" in ran.words


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What `draftc train` hands to the trainer, which does not run."""
    found: list[tuple] = []

    def record(*arguments: object) -> dict[str, float]:
        found.append(arguments)
        return {}

    monkeypatch.setattr("draftc.training.train", record)
    return found


@pytest.mark.parametrize(
    ("card", "arguments", "wanted"),
    [
        ((9, 0), (), (9, 0)),
        (None, (), None),
        ((9, 0), ("--capability", "any"), None),
        ((9, 0), ("--capability", "8.6"), (8, 6)),
        ((9, 0), ("--capability", "detect"), (9, 0)),
    ],
)
def test_backends_are_chosen_for_the_card_at_hand(
    home: Path, tmp_path: Path, started: list[tuple], monkeypatch: pytest.MonkeyPatch,
    card: tuple[int, int] | None, arguments: tuple[str, ...], wanted: tuple[int, int] | None,
) -> None:  # fmt: skip
    monkeypatch.setattr("draftc.compiler.passes.select.detected_capability", lambda: card)
    call(home, "train", "--data", home / "data.jsonl", "--output", tmp_path, *arguments)
    assert started[0][0].program.options.capability == wanted


def test_numbers_of_the_objective_reach_the_trainer(home: Path, tmp_path: Path, started: list[tuple]) -> None:
    usual = ("--data", home / "data.jsonl", "--output", tmp_path, "--loss", "dpace")
    call(home, "train", *usual, "--objective", "dpace_alpha=0.25")
    assert started[0][2].dpace_alpha == 0.25
    with pytest.raises(CommandError, match="did you mean `dpace_alpha`") as caught:
        call(home, "train", *usual, "--objective", "dpace_alpa=0.25")
    assert caught.value.exit_code == 2
    with pytest.raises(CommandError, match="is not a compute capability"):
        call(home, "train", *usual, "--capability", "nine")
    assert len(started) == 1
