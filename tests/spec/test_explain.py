"""Every code has a page, whose bad examples give the code and whose good ones do not; any spelling finds it."""

import json
import re
from pathlib import Path

import pytest

from draftc.spec.check import CheckReport, check_text
from draftc.spec.compiling_codes import COMPILING_CODES
from draftc.spec.diagnostic import Code, Severity
from draftc.spec.explain import Page, UnknownCodeError, catalogue, changes, is_change, known_codes, page
from tests.spec.changes import LANGUAGE, base_of, changed

ROOT = LANGUAGE.parents[1]
SHIPPED = ("draftc", "spec", "compiler", "runtime", "schemas")
LAYOUT_CODES = tuple(code for code in catalogue() if code not in COMPILING_CODES)
WHOLE = {"hidden_size": 2560, "num_hidden_layers": 36, "vocab_size": 151936, "intermediate_size": 9728}
WHOLE |= {"max_position_embeddings": 40960, "rms_norm_eps": 1e-6}
FILES = {
    "whole": WHOLE,
    "incomplete": {key: value for key, value in WHOLE.items() if key != "vocab_size"},
    "draft": WHOLE | {"dflash_config": {"mask_token_id": 151669}},
    "older": {"n_embd" if key == "hidden_size" else key: value for key, value in WHOLE.items()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layouts")
    for name, config in FILES.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config), "utf-8")
    return root


def checked(example: str, folder: Path, encoding: str = "utf-8") -> CheckReport:
    return check_text(changed(base_of(changes()), example).encode(encoding), "example.yaml", folder)


def encoding_of_bad(code: Code) -> str:
    """The one page whose point is the encoding of the file."""
    return "latin-1" if code.number == "DC001" else "utf-8"


@pytest.mark.parametrize("code", LAYOUT_CODES, ids=lambda code: code.number)
def test_bad_examples_give_the_code(code: Code, folder: Path) -> None:
    examples = page(code.number).bad
    assert examples
    for example in examples:
        found = checked(example, folder, encoding_of_bad(code)).diagnostics
        assert code.number in {each.code.number for each in found}, example


@pytest.mark.parametrize("code", LAYOUT_CODES, ids=lambda code: code.number)
def test_good_examples_are_free_of_the_code_and_of_errors(code: Code, folder: Path) -> None:
    examples = page(code.number).good
    assert examples
    for example in examples:
        report = checked(example, folder)
        serious = [each for each in report.diagnostics if each.severity is Severity.ERROR]
        assert serious == [], example
        assert code not in [each.code for each in report.diagnostics], example


@pytest.mark.parametrize("code", catalogue(), ids=lambda code: code.number)
def test_page_has_title_and_reasons(code: Code) -> None:
    text = page(code.number).text
    title, _, rest = text.partition("\n")
    assert title == f"# {code.number} {code.name} ({code.severity})"
    what, _, why = rest.partition("\n## Why it hurts\n")
    assert len(what.split()) >= 6
    assert len(why.partition("\n## Bad\n")[0].split()) >= 12


def test_pages_are_those_of_the_catalogue() -> None:
    written = {path.stem for path in (ROOT / "spec" / "pages").glob("DC*.md")}
    assert {code.number for code in catalogue()} == written


def test_every_code_in_the_sources_has_a_page() -> None:
    """Codes of the catalogue, and no others, are made and mentioned anywhere in what is shipped."""
    sources = [path for folder in SHIPPED for path in sorted((ROOT / folder).rglob("*.py"))]
    mentioned = {number for path in sources for number in re.findall(r"\bDC\d{3}\b", path.read_text("utf-8"))}
    assert mentioned == known_codes().keys()


def test_numbers_and_names_are_unique() -> None:
    codes = catalogue()
    assert len({code.number for code in codes}) == len({code.name for code in codes}) == len(codes)


@pytest.mark.parametrize("asked", ["DC203", "dc203", "203", "kv-heads-not-divisor", " DC203 kv-heads-not-divisor "])
def test_page_is_found_by_every_spelling(asked: str) -> None:
    assert page(asked).code.number == "DC203"


def test_small_numbers_need_no_zeros() -> None:
    assert page("5").code == page("005").code == page("DC005").code


def test_unknown_code_names_the_near_one() -> None:
    with pytest.raises(UnknownCodeError, match=r"no diagnostic is called kv-head-not-divisor; did you mean DC203"):
        page("kv-head-not-divisor")


@pytest.mark.parametrize("asked", ["DC999", "", "pineapple"])
def test_unknown_code_without_a_near_one(asked: str) -> None:
    with pytest.raises(UnknownCodeError) as caught:
        page(asked)
    assert caught.value.near is None


def test_base_of_the_pages_is_the_base_of_the_language_page() -> None:
    assert base_of(changes()) == base_of(LANGUAGE.read_text("utf-8"))


def test_changes_are_told_from_layouts() -> None:
    code = page("DC203").code
    assert is_change("hidden_size: 1024\n")
    assert not is_change("draftc: 1\nname: x\n")
    assert Page(code, "```yaml bad\nhidden_size: 1\n```\n").has_changes
    assert not Page(code, "```yaml bad\ndraftc: 1\n```\n").has_changes
