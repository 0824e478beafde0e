"""`--objective KEY=VALUE`: every number of the objective can be set, and what means nothing is refused in words."""

from dataclasses import fields

import pytest

from draftc.commands.failure import CommandError
from draftc.commands.objective import ELSEWHERE, NUMBERS, objective_numbers
from draftc.runtime.objectives.recipes import ObjectiveOptions, objective_for


def test_every_number_has_one_option() -> None:
    assert {field.name for field in fields(ObjectiveOptions)} == {*NUMBERS, *ELSEWHERE}
    assert not NUMBERS.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_changes_the_objective(key: str) -> None:
    number = NUMBERS[key]
    family, loss = number.family or "dflash", "dpace" if number.losses == "dpace" else "own"
    given = objective_numbers([f"{key} = 0.25"], family, loss)
    assert given == {key: 0.25}
    usual = ObjectiveOptions(loss=loss, selector_ramp=0.5 if key == "selector_warmup" else 0.0)
    changed = ObjectiveOptions(**{**{f.name: getattr(usual, f.name) for f in fields(usual)}, **given})
    assert objective_for(family, True, changed) != objective_for(family, True, usual)


@pytest.mark.parametrize(
    ("words", "family", "loss", "message"),
    [
        (["dpace_alhpa=0.5"], "dflash", "dpace", "no dpace_alhpa\n  = help: did you mean `dpace_alpha`"),
        (["zzz=1"], "dflash", "own", "no zzz\n  = help: there are dpace_alpha, lambda_start"),
        (["=1"], "dflash", "own", "no empty key"),
        (["gamma=3"], "dflash", "own", "no gamma, which is an option itself\n  = help: use --gamma"),
        (["l1"], "dspark", "own", "l1 has no value\n  = help: write --objective l1=0.5"),
        (["l1=1", "l1=2"], "dspark", "own", "l1 is given twice"),
        (["l1=-1"], "dspark", "own", "l1=-1 is out of range\n  = help: l1 is a number, at least 0"),
        (["l1=inf"], "dspark", "own", "out of range"),
        (["ce=nan"], "dspark", "own", "out of range"),
        (["ce=much"], "dspark", "own", "out of range"),
        (["lambda_start=1.5"], "domino", "own", "a number, from 0 to 1"),
        (["lambda_start=0.5"], "dflash", "own", "it is domino's, and this layout is of family dflash"),
        (["l1=0.5"], "dspark", "lk-tv", "belongs to --loss own, and this run has --loss lk-tv"),
        (["dpace_alpha=0.5"], "dflash", "own", "belongs to --loss dpace, and this run has --loss own"),
    ],
)
def test_what_means_nothing_is_refused(words: list[str], family: str, loss: str, message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        objective_numbers(words, family, loss)
    assert caught.value.exit_code == 2


def test_several_numbers_and_none() -> None:
    assert objective_numbers([], "dflash", "own") == {}
    assert objective_numbers(["ce=0.2", "l1=3"], "dspark", "own") == {"ce": 0.2, "l1": 3.0}
    assert objective_numbers(["dpace_alpha=0"], "domino", "dpace-step") == {"dpace_alpha": 0.0}
