"""Whole runs: a draft learns its target's text, a run that stopped goes on bit for bit, ranks change nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import draftc
from draftc.runtime.objectives.recipes import ObjectiveOptions
from draftc.runtime.train.checkpoint import MASTERS, last_checkpoint
from draftc.runtime.train.errors import TrainingDataError, TrainingError
from draftc.runtime.train.run import RunOptions
from draftc.training import capture, train
from tests.training.material import write_layout, write_rows, write_target

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, its text, and layouts."""
    folder = tmp_path_factory.mktemp("training")
    target = write_target(folder / "target")
    write_rows(target, folder / "data.jsonl", 12, length=18)
    write_rows(target, folder / "held.jsonl", 5, seed=2)
    write_layout(folder / "gqa.yaml", "context", "context")
    write_layout(folder / "hybrid.yaml", "context", "scan")
    return folder


@pytest.fixture(autouse=True)
def cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTC_CACHE", str(home / "cache"))


def options(home: Path, output: Path, **changes: object) -> RunOptions:
    usual = {
        "target": home / "target", "data": home / "data.jsonl", "output": output, "device": "cpu", "precision": "fp32",
        "steps": 4, "batch_size": 2, "num_anchors": 4, "save_every": 2, "log_every": 1, "learning_rate": 1e-2,
    }  # fmt: skip
    return RunOptions(**{**usual, **changes})


def run(home: Path, output: Path, layout: str = "gqa", loss: str = "own", **changes: object) -> dict[str, float]:
    how = options(home, output, **changes)
    return train(draftc.compile(home / f"{layout}.yaml"), how, ObjectiveOptions(loss=loss))


def history(output: Path) -> list[dict[str, float]]:
    """Losses of the last checkpoint."""
    state = json.loads((last_checkpoint(output) / "trainer_state.json").read_text(encoding="utf-8"))
    return [{k: entry[k] for k in ("step", "loss", "grad_norm")} for entry in state["log_history"] if "loss" in entry]


def masters(output: Path, step: int) -> dict[str, Tensor]:
    return load_file(output / f"checkpoint-{step}" / MASTERS)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_stopped_goes_on_bit_for_bit(home: Path, tmp_path: Path, precision: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"steps": 6, "accumulation": 2, "precision": precision, "checkpoint_layers": True, "keep": 9}
    run(home, whole, **changes)
    shutil.copytree(whole / "checkpoint-2", cut / "checkpoint-2")
    broken = cut / "checkpoint-4"
    shutil.copytree(whole / "checkpoint-4", broken)
    (broken / "config.json").unlink()
    (broken / "manifest.json").unlink()
    (broken / "trainer_state.json").write_text('{"global_st', encoding="utf-8")
    assert last_checkpoint(cut).name == "checkpoint-2"
    run(home, cut, **changes)
    assert same(masters(cut, 6), masters(whole, 6))
    assert history(cut) == history(whole)
    assert not same(masters(whole, 6), masters(whole, 2))


@pytest.mark.parametrize("family", ["dflash2", "domino", "dspark"])
def test_every_family_goes_on_bit_for_bit(home: Path, tmp_path: Path, family: str) -> None:
    write_layout(home / f"{family}.yaml", "context", "scan", family=family)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"steps": 3, "save_every": 1, "keep": 9, "evaluation": home / "held.jsonl"}
    found = run(home, whole, family, **changes)
    shutil.copytree(whole / "checkpoint-1", cut / "checkpoint-1")
    again = run(home, cut, family, **changes)
    assert same(masters(cut, 3), masters(whole, 3))
    assert not same(masters(whole, 3), masters(whole, 1))
    assert history(cut) == history(whole)
    assert again == found
    drafted = 4 if family == "dspark" else 3
    assert f"eval_acceptance_at_{drafted}" in found
    assert f"eval_acceptance_at_{drafted + 1}" not in found


def test_a_checkpoint_is_a_bundle(home: Path, tmp_path: Path) -> None:
    run(home, tmp_path, steps=2)
    script = (
        "import sys, torch; from transformers import AutoModel;"
        "m = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True);"
        "torch.save(m.state_dict(), sys.argv[2]); assert 'draftc' not in sys.modules"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    for number, bundle in enumerate((tmp_path / "checkpoint-2", tmp_path / "tiny")):
        state = tmp_path / f"{number}.pt"
        subprocess.run([sys.executable, "-c", script, bundle, state], check=True, env=environment, cwd=tmp_path)
        assert same(torch.load(state), masters(tmp_path, 2))


def test_accumulation_is_a_larger_batch(home: Path, tmp_path: Path) -> None:
    for name, changes in {"large": {"batch_size": 4}, "split": {"batch_size": 1, "accumulation": 4}}.items():
        run(home, tmp_path / name, steps=3, **changes)
    for large, split in zip(history(tmp_path / "large"), history(tmp_path / "split"), strict=True):
        assert split["loss"] == pytest.approx(large["loss"], rel=1e-5)
        assert split["grad_norm"] == pytest.approx(large["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("loss", ["own", "lk-lambda"])
def test_captured_states_train_like_the_target_itself(home: Path, tmp_path: Path, loss: str) -> None:
    draft = draftc.compile(home / "gqa.yaml")
    manifest = capture(draft, home / "target", home / "data.jsonl", tmp_path / "states", shard_rows=5, dtype="fp32")
    assert [shard.rows for shard in manifest.shards] == [5, 5, 2]
    run(home, tmp_path / "online", loss=loss, steps=2)
    run(home, tmp_path / "offline", loss=loss, steps=2, data=tmp_path / "states")
    for online, offline in zip(history(tmp_path / "online"), history(tmp_path / "offline"), strict=True):
        assert offline["loss"] == pytest.approx(online["loss"], rel=1e-5)


@pytest.mark.parametrize("layout", ["gqa", "hybrid"])
def test_packing_changes_no_loss(home: Path, tmp_path: Path, layout: str) -> None:
    run(home, tmp_path / "padded", layout, steps=2, batch_size=4)
    run(home, tmp_path / "packed", layout, steps=2, batch_size=4, pack=True, max_length=100)
    run(home, tmp_path / "static", layout, steps=2, batch_size=4, pack=True, max_length=100, static_shapes=True)
    for padded, packed, static in zip(*(history(tmp_path / n) for n in ("padded", "packed", "static")), strict=True):
        assert packed["loss"] == pytest.approx(padded["loss"], rel=1e-5)
        assert static["loss"] == pytest.approx(padded["loss"], rel=1e-5)


def test_evaluation_reports_loss_and_every_position(home: Path, tmp_path: Path) -> None:
    found = run(home, tmp_path / "own", steps=2, evaluation=home / "held.jsonl")
    shares = [found[f"eval_acceptance_at_{k}"] for k in (1, 2, 3)]
    assert "eval_acceptance_at_4" not in found
    assert 1 <= found["eval_acceptance_length"] <= 1 + sum(shares) + 1e-9
    assert shares == sorted(shares, reverse=True)
    split = run(home, tmp_path / "split", steps=2, evaluation=home / "held.jsonl", loss="ce", batch_size=1)
    assert split.keys() == found.keys()
    again = run(home, tmp_path / "own", steps=2, evaluation=home / "held.jsonl", batch_size=3)
    assert all(again[name] == pytest.approx(value, rel=1e-5) for name, value in found.items() if name != "epoch")


def test_the_best_checkpoint_is_kept(home: Path, tmp_path: Path) -> None:
    changes = {"evaluation": home / "held.jsonl", "steps": 10, "save_every": 2, "keep": 1, "learning_rate": 0.3}
    found = run(home, tmp_path, keep_best=True, **changes)
    state = json.loads((last_checkpoint(tmp_path) / "trainer_state.json").read_text(encoding="utf-8"))
    lengths = {e["step"]: e["eval_acceptance_length"] for e in state["log_history"] if "eval_accuracy" in e}
    best = max(lengths, key=lambda step: (lengths[step], -step))
    assert sorted(lengths) == [2, 4, 6, 8, 10]
    assert state["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")
    assert found["eval_acceptance_length"] == pytest.approx(lengths[best])
    assert same(load_file(tmp_path / "tiny" / "model.safetensors"), masters(tmp_path, best))
    for wrong in ({"evaluation": None}, {"evaluate_every": 3}):
        with pytest.raises(TrainingError, match="best checkpoint"):
            options(home, tmp_path, keep_best=True, **{**changes, **wrong})


def test_what_cannot_be_trained_on_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="does not exist"):
        run(home, tmp_path / "a", data=home / "nothing.jsonl")
    with pytest.raises(TrainingError, match="cannot be loaded"):
        run(home, tmp_path / "b", target=home / "cache")
    with pytest.raises(TrainingError, match="precision"):
        options(home, tmp_path, precision="fp8")
    with pytest.raises(TrainingError, match="num_anchors"):
        options(home, tmp_path, num_anchors=0)
    write_target(tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingDataError, match=r"data\.jsonl, row \d+: the target's states are not finite"):
        run(home, tmp_path / "c", target=tmp_path / "broken")


@pytest.mark.slow
def test_a_draft_learns_what_its_target_says(home: Path, tmp_path: Path) -> None:
    write_rows(write_target(home / "target"), tmp_path / "much.jsonl", 64, length=24, seed=4)
    changes = {"evaluation": home / "held.jsonl", "num_anchors": 16, "batch_size": 8, "learning_rate": 3e-3}
    before = run(home, tmp_path / "one", "gqa", steps=1, data=tmp_path / "much.jsonl", **changes)
    after = run(home, tmp_path / "all", "gqa", steps=120, data=tmp_path / "much.jsonl", save_every=120, **changes)
    assert before["eval_acceptance_length"] < 1.3
    assert after["eval_acceptance_length"] > before["eval_acceptance_length"] + 0.5
    assert after["eval_accuracy"] > before["eval_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["ddp", "fsdp"])
def test_ranks_train_what_one_process_trains(home: Path, tmp_path: Path, spread: str) -> None:
    run(home, tmp_path / "alone", "hybrid", batch_size=2, evaluation=home / "held.jsonl")
    arguments = [
        "--target", home / "target", "--data", home / "data.jsonl", "--eval-data", home / "held.jsonl", "--steps", 4,
        "--batch-size", 1, "--num-anchors", 4, "--save-every", 2, "--log-every", 1, "--learning-rate", 0.01,
        "--precision", "fp32", "--device", "cpu", "--spread", spread, "--output", tmp_path / "ranks",
    ]  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "draftc"]
    command = [*launcher, "train", home / "hybrid.yaml", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for ranks, alone in zip(history(tmp_path / "ranks"), history(tmp_path / "alone"), strict=True):
        assert ranks["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert ranks["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    for name, tensor in masters(tmp_path / "alone", 4).items():
        assert torch.allclose(masters(tmp_path / "ranks", 4)[name], tensor, rtol=1e-3, atol=2e-4), name
    reached = masters(tmp_path / "ranks", 4)
    shutil.rmtree(tmp_path / "ranks" / "checkpoint-4")
    again = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-3000:]
    assert same(masters(tmp_path / "ranks", 4), reached)
