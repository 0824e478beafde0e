"""Scripts that run kernels in Triton's interpreter: whether kernels are interpreted, their import decides."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def interpreted_by(script: str) -> dict[str, Any]:
    """What `tests/runtime/<script>.py` prints as JSON, in a process of its own. Skips where Triton is missing."""
    pytest.importorskip("triton")
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tests.runtime.{script}"]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def too_far(cases: dict[str, dict[str, float]], tolerance: float) -> dict[str, dict[str, float]]:
    """The errors that are not below `tolerance`, by case and name."""
    wrong = {case: {n: e for n, e in errors.items() if not e < tolerance} for case, errors in cases.items()}
    return {case: found for case, found in wrong.items() if found}
