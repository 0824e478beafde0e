"""The kernels around KDA's core are the plain forms, with all gradients, in the interpreter; the view chooses them."""

import sys

import pytest
import torch

from draftc.runtime.kda.layer import GatedRMSNorm, ShortConvolution, gated_norm, short_convolution
from draftc.runtime.kda.math import convolve_rows, gate_rows
from draftc.runtime.kda.triton import MissingTritonWarning
from draftc.runtime.visibility import View, ViewError
from tests.runtime.interpreter import interpreted_by, too_far

FLOAT32 = 1e-6  # of a norm, to the plain form in float64
NARROW = {"bfloat16": 6e-3, "float16": 1e-3}  # the interpreter cuts bfloat16 off instead of rounding it
EXACT = ("repeated", "poisoned", "among nans", "strided", "checkpointed", "compiled", "without gradients")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict]:
    return interpreted_by("layer_interpreted")


@pytest.mark.parametrize(("operation", "count"), [("convolution", 27), ("norm", 5)])
def test_float32_is_the_plain_form(interpreted, operation, count):
    assert len(interpreted[operation]) == count
    assert not too_far(interpreted[operation], FLOAT32)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_dtypes_are_rounded_once_whatever_holds_the_weight(interpreted, dtype):
    cases = {name: errors for name, errors in interpreted["narrow"].items() if f" {dtype}, weight" in name}
    assert len(cases) == 4
    assert not too_far(cases, NARROW[dtype])
    wide = {name: {"dweight": each["dweight"]} for name, each in cases.items() if name.endswith("weight float32")}
    assert len(wide) == 2
    assert not too_far(wide, FLOAT32)


@pytest.mark.parametrize("operation", ["convolution", "norm"])
@pytest.mark.parametrize("case", EXACT)
def test_not_a_bit_changes(interpreted, operation, case):
    assert interpreted["exact"][operation][case] == []


@pytest.mark.parametrize("case", ["no rows", "no blocks", "no heads"])
def test_nothing_comes_of_nothing(interpreted, case):
    assert interpreted["empty"][case] == []


@pytest.mark.parametrize("layer", ["DeltaAttention", "ScanDeltaAttention", "compiled"])
def test_a_layer_on_kernels_is_the_layer_on_plain_operations(interpreted, layer):
    found = interpreted["layer"][layer]
    assert {"made", "block", "q_conv1d.weight", "o_norm.weight"} <= set(found)
    assert not too_far({layer: found}, 5e-6)


def view(backend: str) -> View:
    return View(None, backend, 0.0, None)


@pytest.mark.parametrize("backend", ["kda_recurrent", "kda_block", "kda_fla"])
def test_backends_without_kernels_take_the_plain_forms(backend):
    convolution, norm = ShortConvolution(6, 3), GatedRMSNorm(4, 1e-5)
    rows, out, gate = torch.randn(2, 5, 6), torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    assert torch.equal(convolution(rows, view(backend)), convolve_rows(rows, convolution.weight))
    assert torch.equal(norm(out, gate, view(backend)), gate_rows(out, gate, norm.weight, 1e-5))


def test_a_name_that_no_backend_has_is_said():
    rows, out = torch.randn(2, 5, 6), torch.randn(2, 5, 3, 4)
    with pytest.raises(ViewError, match="'kda_fast' is none of kda_recurrent"):
        short_convolution(rows, torch.randn(6, 3), view("kda_fast"))
    with pytest.raises(ViewError, match="'kda_fast' is none of kda_recurrent"):
        gated_norm(out, out, torch.randn(4), 1e-5, view("kda_fast"))


@pytest.mark.parametrize("backend", ["kda_triton", "kda_gluon"])
def test_without_triton_the_plain_forms_run_and_say_so(backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "draftc.runtime.kda.triton_core", None)  # importing it raises
    rows, weight, out = torch.randn(2, 5, 6), torch.randn(6, 3), torch.randn(2, 5, 3, 4)
    with pytest.warns(MissingTritonWarning, match="plain tensor operations"):
        made = short_convolution(rows, weight, view(backend))
    assert torch.equal(made, convolve_rows(rows, weight))
    with pytest.warns(MissingTritonWarning, match="plain tensor operations"):
        made = gated_norm(out, out, torch.ones(4), 1e-5, view(backend))
    assert torch.equal(made, gate_rows(out, out, torch.ones(4), 1e-5))
