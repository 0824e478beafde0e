"""A bundle whose layers chose kernels carries them as files of its own, and runs where Triton is missing."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import check_imports

from draftc.compiler import api
from draftc.compiler.program import Options
from tests.compiler.bundles import run_alone
from tests.compiler.support import KDA, layout

PLAIN = [
    "triton_backward.py", "triton_convolution.py", "triton_core.py", "triton_forward.py", "triton_kernels.py",
    "triton_layer.py", "triton_norm.py",
]  # fmt: skip
STATES = ["triton_state_backward.py", "triton_state_kernels.py", "triton_states.py"]
GLUON = ["gluon_backward.py", "gluon_core.py", "gluon_forward.py", "gluon_gradients.py", "gluon_tiles.py"]
PACKAGES = {"torch": "2.13.0", "triton": "3.6.0"}

LOAD = """
import json, warnings
sys.modules["triton"] = None  # importing it raises
import torch
from transformers import AutoModel
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float32)
size, config = model.config.block_size, model.config
generator = torch.Generator().manual_seed(3)
noise = torch.randn(1, 2 * size, config.target_hidden_size, generator=generator)
taps = torch.randn(1, 10, config.context_width, generator=generator)
def run():
    anchors = torch.tensor([[2, 7]])
    return model(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
plain = run()
model.environment_wish = sys.argv[2]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    kernels = run()
assert torch.equal(plain, kernels)
model.save_pretrained(sys.argv[3])
print(json.dumps([type(each.message).__name__ for each in said]))
"""


def draft(
    width: int = 32, rows: int = 4, backend: str | None = "kda_triton", state: str = "reset"
) -> api.CompiledDraft:
    spec = replace(KDA, head_dim=width, context_state=state)
    made = layout("recurrent", attentions={"recurrent": spec}, dtype="bfloat16")
    options = Options(backend=backend, capability=(9, 0), packages=PACKAGES)
    return api.compile(replace(made, block_size=rows), options)


def kernel_files(compiled: api.CompiledDraft) -> list[str]:
    return [name for name in sorted(compiled.files) if name in (*PLAIN, *STATES, *GLUON)]


def test_the_chosen_kernel_travels_and_no_other():
    assert kernel_files(draft()) == PLAIN
    assert kernel_files(draft(128, 16, "kda_gluon")) == sorted([*GLUON, *PLAIN])  # which take what misfits
    assert kernel_files(draft(128, 16, None)) == sorted([*GLUON, *PLAIN])
    assert kernel_files(draft(128, 16, "kda_block")) == []
    assert kernel_files(draft(state="scan")) == [*PLAIN, *STATES]
    alone = {name: text for name, text in draft(128, 16, "kda_gluon").files.items() if name.endswith(".py")}
    assert not [name for name, text in alone.items() if "import draftc" in text or "from draftc" in text]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_kernels_are_clean_beside_a_model(command, tmp_path):
    draft(128, 16, "kda_gluon").write(tmp_path / "tiny")
    ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", str(tmp_path / "tiny")]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("backend", "width", "rows"), [("kda_triton", 32, 4), ("kda_gluon", 128, 16)])
def test_a_bundle_runs_where_triton_is_missing_and_says_so(backend, width, rows, tmp_path):
    compiled = draft(width, rows, backend)
    assert compiled.program.backend(0, "training", "cuda") == backend
    compiled.write(tmp_path / "tiny", weights="random")
    said = run_alone(LOAD, tmp_path, tmp_path / "tiny", backend, tmp_path / "again")
    assert "MissingTritonWarning" in said
    for name in kernel_files(compiled):
        assert (tmp_path / "again" / name).read_text() == compiled.files[name]


def test_no_file_makes_transformers_demand_triton(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    for name, text in draft(128, 16, "kda_gluon").files.items():
        if name.endswith(".py"):
            path = Path(tmp_path / name)
            path.write_text(text)
            check_imports(path)
