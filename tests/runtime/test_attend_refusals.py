"""What the backends of softmax attention refuse, each reason with its numbers."""

from dataclasses import replace

import pytest

from draftc.runtime.attend.registry import refuse_eager, refuse_flash, refuse_flex, refuse_sdpa
from draftc.runtime.request import BackendRequest

PACKAGES = {"torch": "2.13", "flash-attn": "2.8"}
CARD = BackendRequest("attend", "training", "cuda", "bfloat16", 192, 128, 16, 16, 16, packages=PACKAGES)
STEP = replace(CARD, phase="decoding", needs_grad=False)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"q_dim": 16, "v_dim": 16}, []),
        ({"v_dim": 15}, ["heads of 192 and 15 channels; its kernels need 16"]),
        ({"q_dim": 8, "v_dim": 8}, ["heads of 8 and 8 channels; its kernels need 16"]),
        ({"q_dim": 512, "v_dim": 512}, []),
        ({"q_dim": 576, "v_dim": 512}, ["heads of 576 and 512 channels; its tiles hold 512"]),
        ({"dtype": "float64"}, ["its kernels do not compile for float64"]),
        ({"dropout": 0.1}, ["attention_dropout is 0.1; flex drops no weights"]),
        ({"capability": (6, 1)}, ["compute capability 6.1 is below 7.0"]),
        ({"device": "cpu", "v_dim": 8}, ["flex has no backward on CPU, and gradients are needed"]),
        ({"device": "cpu", "v_dim": 8, "needs_grad": False}, []),
    ],
)
def test_flex(changes: dict, reasons: list[str]) -> None:
    assert [refusal.reason for refusal in refuse_flex(replace(CARD, **changes))] == reasons


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"q_dim": 576, "v_dim": 512}, ["heads of 576 channels; flash takes 256"]),
        ({"phase": "training"}, ["training blocks need a mask; flash takes none"]),
        ({"dtype": "float32"}, ["flash computes in bfloat16 and float16, not float32"]),
        ({"capability": (7, 5)}, ["compute capability 7.5 is below 8.0"]),
        ({"packages": {}}, ["needs flash-attn, an optional package (--package flash-attn)"]),
    ],
)
def test_flash(changes: dict, reasons: list[str]) -> None:
    assert [refusal.reason for refusal in refuse_flash(replace(STEP, **changes))] == reasons


def test_eager_and_sdpa_take_everything() -> None:
    narrow = replace(CARD, q_dim=1, v_dim=3, dtype="float64", dropout=0.5, device="cpu")
    assert refuse_eager(narrow) == refuse_sdpa(narrow) == ()
