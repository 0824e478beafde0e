"""Two ranks, FSDP2 and DDP, compute what one rank computes: loss, gradients, weights and moments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.ranks import NARROW, RUNS

ROOT = Path(__file__).parents[2]


def compare(folder: Path, kind: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.training.ranks"]
    runs = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), str(folder / "report"), kind],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [run.communicate(timeout=570)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    lines = [line.split(" ", 4) for line in (folder / "report").read_text(encoding="utf-8").splitlines()]
    exact = [(*each, spread) for each in RUNS for spread in ("fsdp", "ddp")]
    assert [tuple(line[:3]) for line in lines] == [*exact, (*NARROW, "fsdp-bf16"), (*NARROW, "ddp-bf16")]
    assert not [line for line in lines if not float(line[3]) < (2e-2 if line[2].endswith("bf16") else 1e-10)]


@pytest.mark.slow
def test_two_ranks_are_one(tmp_path: Path) -> None:
    compare(tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_two_cards_are_one(tmp_path: Path) -> None:
    compare(tmp_path, "cuda")
