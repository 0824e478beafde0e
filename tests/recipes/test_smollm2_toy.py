"""The experiment at toy size, on CPU, from the target's answers to a measured draft that saves passes of the target."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recipes.smollm2.experiment import app
from tests.generation.test_smollm2 import FILE, folder, needs_smollm2

pytestmark = [pytest.mark.slow, *needs_smollm2]


def test_a_draft_trained_for_minutes_is_accepted(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    words = ["all", str(tmp_path / "work"), str(folder()), "--gguf-file", FILE, "--output", str(output)]
    ran = CliRunner().invoke(app, [*words, "--device", "cpu", "--budget", "toy", "--variant", "toy"])
    assert ran.exit_code == 0, ran.output
    run = json.loads(output.read_text())["runs"]["toy-0"]
    assert run["acceptance_length"][0] > 1.5
    assert run["greedy_text_is_the_targets"]
