"""Two ranks over gloo, FSDP2 and DDP, compute what one rank computes: loss, gradients, weights and moments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.ranks import RUNS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_ranks_are_one(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.training.ranks"]
    runs = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(tmp_path / "report")],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [run.communicate(timeout=570)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    lines = [line.split(" ", 4) for line in (tmp_path / "report").read_text(encoding="utf-8").splitlines()]
    assert [tuple(line[:3]) for line in lines] == [(*each, spread) for each in RUNS for spread in ("fsdp", "ddp")]
    assert not [line for line in lines if not float(line[3]) < 1e-10]
