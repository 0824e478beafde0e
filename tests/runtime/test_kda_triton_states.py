"""The kernels that carry KDA's state over a context are the recurrence, with all gradients, in the interpreter."""

import pytest

from draftc.runtime.kda.states import WALK_ROWS
from tests.runtime.interpreter import interpreted_by


@pytest.fixture(scope="module")
def interpreted() -> dict:
    return interpreted_by("states_interpreted")


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
