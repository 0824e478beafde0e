"""The Triton kernels are the recurrence, with all gradients, in the interpreter; where they cannot run, a reason."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftc.runtime.kda import kda
from draftc.runtime.kda.registry import KDA_BACKENDS, refuse_kda_gluon, refuse_kda_triton
from draftc.runtime.kda.triton import MissingTritonWarning
from draftc.runtime.request import BackendRequest
from draftc.runtime.visibility import View
from tests.runtime.interpreter import interpreted_by, too_far
from tests.runtime.kda_inputs import Hard, kda_inputs

ROOT = Path(__file__).parents[2]
FLOAT32 = 1e-5  # of a norm; the gradient of A_log is one number, a sum that cancels
NARROW = {"bfloat16": 6e-3, "float16": 1e-3}
EXACT = ("repeated", "poisoned", "strided", "checkpointed", "compiled", "compiled without a state", "without gradients")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict]:
    return interpreted_by("kda_interpreted")


def test_float32_is_the_recurrence_for_every_length_with_and_without_a_state(interpreted):
    assert len(interpreted["float32"]) == 26
    assert not too_far(interpreted["float32"], FLOAT32)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_dtypes_lose_what_their_operands_lose(interpreted, dtype):
    cases = {name: errors for name, errors in interpreted["narrow"].items() if name.endswith(f" {dtype}")}
    assert len(cases) == 2
    assert not too_far(cases, NARROW[dtype])


@pytest.mark.parametrize("case", EXACT)
def test_not_a_bit_changes(interpreted, case):
    assert interpreted["exact"][case] == []


REQUEST = BackendRequest(
    op="kda", phase="training", device="cuda", dtype="bfloat16", q_dim=128, v_dim=128, heads=32, kv_heads=32,
    block_size=16, capability=(9, 0), context_state="reset", gate_lower_bound=-5.0, packages={"triton": "3.6.0"},
)  # fmt: skip


def test_both_run_what_they_were_made_for():
    assert refuse_kda_triton(REQUEST) == refuse_kda_gluon(REQUEST) == ()
    ranks = {backend.name: backend.rank("training", "cuda") for backend in KDA_BACKENDS}
    assert sorted(ranks, key=ranks.__getitem__) == ["kda_recurrent", "kda_block", "kda_fla", "kda_triton", "kda_gluon"]


@pytest.mark.parametrize(
    ("changes", "triton", "gluon"),
    [
        ({"device": "cpu"}, "not on cpu", "not on cpu"),
        ({"capability": (8, 0)}, None, "8.0 is below 9.0"),
        ({"capability": (7, 5)}, "7.5 is below 8.0", "7.5 is below 9.0"),
        ({"capability": None}, None, "not known"),
        ({"packages": {}}, "needs triton", "needs triton"),
        ({"packages": {"triton": "3.5.1"}}, None, "3.5.1 is older than 3.6"),
        ({"packages": {"triton": "3.2"}}, "3.2 is older than 3.4", "3.2 is older than 3.6"),
        ({"packages": {"triton": "4.0"}}, None, "known up to before 3.9"),
        ({"block_size": 32}, None, "32 is none of (8, 16)"),
        ({"block_size": 33}, "33 is outside [2, 32]", "33 is none of (8, 16)"),
        ({"block_size": 1}, "1 is outside [2, 32]", "1 is none of (8, 16)"),
        ({"block_size": 8}, None, None),
        ({"block_size": 8, "phase": "decoding"}, None, "does not fill a tile of 16"),
        ({"q_dim": 96, "v_dim": 96}, None, "96 is not 128"),
        ({"q_dim": 80, "v_dim": 80}, "80 is no multiple of 32", "80 is not 128"),
        ({"q_dim": 512, "v_dim": 512}, "up to 256", "512 is not 128"),
        ({"dtype": "float16"}, None, "not float16"),
        ({"dtype": "float64"}, "no float64", "not float64"),
        ({"context_state": "scan"}, None, "scan"),
        ({"gate_lower_bound": None}, None, None),
        ({"gate_lower_bound": -9.5}, None, "-9.5 is outside [-9, 0)"),
        ({"gate_lower_bound": -11.0}, "-11 is outside [-10, 0)", "-11 is outside [-9, 0)"),
    ],
)
def test_refusals_say_why_with_their_numbers(changes, triton, gluon):
    request = replace(REQUEST, **changes)
    for refuse, wanted in ((refuse_kda_triton, triton), (refuse_kda_gluon, gluon)):
        reasons = [refusal.reason for refusal in refuse(request)]
        assert bool(reasons) == (wanted is not None), (refuse.__name__, reasons)
        assert wanted is None or any(wanted in reason for reason in reasons), reasons


@pytest.mark.parametrize("backend", ["kda_triton", "kda_gluon"])
@pytest.mark.parametrize("compiled", [False, True])
def test_without_kernels_the_closed_form_runs_and_says_so(backend, compiled, monkeypatch):
    for kernels in ("triton_core", "gluon_core"):
        monkeypatch.setitem(sys.modules, f"draftc.runtime.kda.{kernels}", None)  # importing it raises
    inputs = kda_inputs(8, Hard(), True)
    views = {name: View(None, name, 0.0, None) for name in ("kda_block", backend)}
    function = lambda *x: kda(*x, views[backend], -5.0)  # noqa: E731
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="eager")
    with pytest.warns(MissingTritonWarning, match="plain tensor operations"):
        out = function(*inputs)
    assert torch.equal(out, kda(*inputs, views["kda_block"], -5.0))


def test_kernel_files_say_that_they_need_triton():
    script = "import sys; sys.modules['triton'] = None\nimport draftc.runtime.kda.{}"
    for kernels in ("triton_core", "gluon_core"):
        command = [sys.executable, "-c", script.format(kernels)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "need" in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("ImportError: the kernels of kda_")
