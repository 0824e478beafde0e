"""The kernels that carry KDA's state over a context are the recurrence, with all gradients, in the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftc.runtime.kda.states import WALK_ROWS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def interpreted() -> dict:
    pytest.importorskip("triton")
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.runtime.states_interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_kernels_work_on_tiles_as_long_as_those_of_a_walk():
    pytest.importorskip("triton")
    from draftc.runtime.kda.triton_core import LEAST_TILE

    assert LEAST_TILE >= WALK_ROWS


def limit(case: str, name: str) -> float:
    """Of an error; the gradient of A_log is a sum that cancels."""
    if not case.endswith("bfloat16"):
        return 1e-5
    return 1.5e-2 if name == "A_log" else 6e-3


def test_states_and_gradients_are_the_recurrence(interpreted):
    assert len(interpreted["errors"]) == 16
    found = [(case, name, e) for case, errors in interpreted["errors"].items() for name, e in errors.items()]
    assert [each for each in found if not each[2] < limit(*each[:2])] == []


def test_compilation_changes_no_bit(interpreted):
    assert interpreted["changed"] == []
