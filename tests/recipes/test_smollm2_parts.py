"""The parts of the SmolLM2 experiment that need no model: prompts, layouts, intervals, the report."""

import json
import random
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import draftc
from draftc.api import load
from draftc.runtime.heads.slots import dspark_slots, own_slots
from draftc.spec.layout import Dspark, Layout
from recipes.smollm2 import experiment
from recipes.smollm2.corpus import spread_out
from recipes.smollm2.experiment import chosen, chosen_parts, measure_all, measured_file, results, table
from recipes.smollm2.intervals import acceptance, change, survival
from recipes.smollm2.learning import bundle_folder
from recipes.smollm2.measuring import PARTS, Bench, speed_of
from recipes.smollm2.prompts import HELD_OUT, REQUESTS, TASKS, TOPICS
from recipes.smollm2.settings import BASELINE, CARD, LAYOUTS, TOY, TOY_VARIANT, VARIANTS, Variant


@pytest.mark.parametrize("task", TASKS)
def test_no_prompt_is_trained_on_and_measured_with(task: str) -> None:
    found = TASKS[task]()
    assert len(set(found.training) | set(found.held_out)) == len(found.training) + len(found.held_out)


def test_whole_topics_are_held_out() -> None:
    found = TASKS["requests"]()
    assert len(found.training) + len(found.held_out) == len(TOPICS) * len(REQUESTS)
    assert not [text for text in found.training if any(text == r.format(topic) for r in REQUESTS for topic in HELD_OUT)]


@pytest.mark.parametrize("budget", [CARD, TOY])
def test_budgets_ask_for_no_more_prompts_than_there_are(budget) -> None:
    found = TASKS[budget.task]()
    assert budget.prompts <= len(found.training)
    assert max(budget.timed, budget.exact) <= budget.held_out <= len(found.held_out)


def test_prompts_are_spread_over_all() -> None:
    assert spread_out("abcdefgh", 4) == ["a", "c", "e", "g"]
    assert spread_out("abc", 9) == ["a", "b", "c"]


def drafted(layout: Layout) -> int:
    if isinstance(layout.family, Dspark):
        return dspark_slots(layout.block_size, layout.family.sample_from_anchor).drafted
    return own_slots(layout.block_size).drafted


def test_variants_differ_in_what_they_compare_only() -> None:
    layouts = [load(variant.path) for variant in VARIANTS]
    assert {drafted(layout) for layout in layouts} == {7}
    assert {len(layout.layers) for layout in layouts} == {5}
    assert {layout.target_layer_ids for layout in (*layouts, load(TOY_VARIANT.path))} == {(1, 14, 27)}
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("layout", [*LAYOUTS, TOY_VARIANT.layout])
def test_layouts_compile(layout: str) -> None:
    assert draftc.compile(Variant(layout).path).layout.name == layout


def test_a_variant_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(typer.BadParameter, match=f"there is no variant gqu; there are {BASELINE}"):
        chosen(["gqu"])


def rounds(mean: float, prompts: int, seed: int) -> list[list[int]]:
    """Rounds of `prompts` prompts, each with a mean of its own around `mean`."""
    draw = random.Random(seed)
    means = [mean + draw.uniform(-0.5, 0.5) for _ in range(prompts)]
    return [[1 + (draw.random() < each - 1) for _ in range(40)] for each in means]


def test_acceptance_is_tokens_per_round_within_its_interval() -> None:
    lengths = [[1, 3], [2], [4, 4, 4]]
    found = acceptance(lengths)
    assert found.value == pytest.approx(18 / 6)
    assert found.low <= found.value <= found.high
    assert acceptance([[2, 2], [2]]).rounded() == [2.0, 2.0, 2.0]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(60):
        found = acceptance(rounds(1.5, 40, seed))
        covered += found.low <= 1.5 <= found.high
    assert 51 <= covered <= 60


def test_a_change_is_of_pairs() -> None:
    base = rounds(1.5, 60, 1)
    more = [[length + 1 for length in line] for line in base]
    found = change(more, base)
    assert found.value == pytest.approx(100 / acceptance(base).value)
    assert found.high - found.low < acceptance(more).high / acceptance(base).low * 100 - 100
    assert change(base, base).rounded() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="60 prompts cannot be paired with 59"):
        change(base, base[1:])


def test_shares_of_rounds_that_stood() -> None:
    assert survival([[1, 2], [3, 4]], 3) == [0.75, 0.5, 0.25]


def test_the_first_call_is_not_timed() -> None:
    """The first answer takes 100 seconds, each after it one."""
    asked: list[str] = []

    def answer(text: str) -> tuple[int, ...]:
        asked.append(text)
        return (1, 2, 3, 4)

    assert speed_of(answer, ["a", "b"], lambda: 99.0 + len(asked) if asked else 0.0) == pytest.approx(8 / 2)
    assert asked == ["a", "a", "b"]


def test_runs_without_numbers_are_named(tmp_path: Path) -> None:
    log = measured_file(tmp_path, (Variant(BASELINE, "lk-alpha"), 0)).with_name("log.txt")
    log.parent.mkdir(parents=True)
    log.write_text("killed")
    found = results(tmp_path, "toy")
    assert found["runs"] == {}
    assert found["plain_tokens_per_second"] is None
    assert table(found).endswith("Not measured: gqa-lk-alpha-0.")


def test_parts_are_measured_once_and_say_on_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Variant(BASELINE), 0
    bundle = bundle_folder(tmp_path, *run)
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text("{}")
    asked: list[str] = []

    def part(name: str):
        def found(_bench: Bench, _bundle: Path) -> dict[str, object]:
            asked.append(name)
            return {name: 1}

        return found

    monkeypatch.setattr(experiment, "open_bench", lambda *_: Bench(*[None] * 3, (), TOY, "cpu", torch.bfloat16))
    for name in ("acceptance", "text"):
        monkeypatch.setitem(PARTS, name, part(name))
    for parts in (["acceptance"], ["acceptance", "text"], ["text"]):
        list(measure_all(tmp_path, [run], parts, "cpu", torch.bfloat16, "toy"))
    assert asked == ["acceptance", "text"]
    found = results(tmp_path, "toy")["runs"]["gqa-0"]
    assert found["measured_on"] == {"acceptance": "cpu, bfloat16", "text": "cpu, float32"}
    assert table(results(tmp_path, "toy")).endswith("| gqa-0 |  |  |  |  |  |  |")


def test_a_part_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert chosen_parts(None) == list(PARTS)
    with pytest.raises(typer.BadParameter, match="there is no part sped; there are acceptance, speed, text"):
        chosen_parts(["sped"])


@pytest.mark.parametrize("words", [["--device", "gpu"], ["--budget", "huge"], ["--precision", "fp8"]])
def test_options_without_meaning_are_refused_with_those_that_have_one(tmp_path: Path, words: list[str]) -> None:
    bundle = bundle_folder(tmp_path, Variant(BASELINE), 0)
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text("{}")
    ran = CliRunner().invoke(experiment.app, ["measurements", str(tmp_path), *words])
    assert ran.exit_code == 2
    assert f"there is no {words[0].strip('-')} {words[1]}; there are" in ran.output.replace("\n", " ")


def test_the_report_pairs_runs_of_one_seed(tmp_path: Path) -> None:
    for variant, seed, mean in ((Variant(BASELINE), 0, 1.6), (Variant("mla"), 0, 1.4), (Variant("mla"), 1, 1.4)):
        file = measured_file(tmp_path, (variant, seed))
        file.parent.mkdir(parents=True)
        lengths = rounds(mean, 30, 0)
        found = {"parameters": 1_000_000, "acceptance_length": acceptance(lengths).rounded(), "lengths": lengths}
        file.write_text(json.dumps({**found, "draft_step_ms": 1.0, "tokens_per_second": 2.0, "times_plain": 0.5}))
    (tmp_path / "plain.json").write_text("4.0")
    found = results(tmp_path, "toy")
    assert set(found["runs"]) == {"gqa-0", "mla-0", "mla-1"}
    low, high = found["runs"]["mla-0"]["percent_against_gqa"][1:]
    assert low < high < 0
    assert "percent_against_gqa" not in found["runs"]["mla-1"]
    assert "lengths" not in found["runs"]["gqa-0"]
    assert "| mla-0 | 1.0 M |" in table(found)
    assert torch.tensor(found["plain_tokens_per_second"]) == 4.0
