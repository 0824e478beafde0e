"""Every row of section 12 of the language page: its change gives its codes, its message and its help, and no others."""

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftc.spec.check import check_text
from draftc.spec.diagnostic import Severity
from draftc.spec.explain import catalogue
from tests.spec.changes import LANGUAGE, base_of, changed

PAGE = LANGUAGE.read_text("utf-8")
BASE = base_of(PAGE.split("## 12. Rules", 1)[1])
SEVERITIES = {"E": Severity.ERROR, "W": Severity.WARNING, "N": Severity.NOTE}
FACTS = {"hidden_size": 2560, "num_hidden_layers": 36, "vocab_size": 151936, "intermediate_size": 9728}
FACTS |= {"max_position_embeddings": 40960, "rms_norm_eps": 1e-6}
FILES = {
    "(a file without vocab_size)": {key: value for key, value in FACTS.items() if key != "vocab_size"},
    "(a draft's file)": FACTS | {"dflash_config": {"mask_token_id": 7}},
    "(a file with n_embd)": {"n_embd" if key == "hidden_size" else key: value for key, value in FACTS.items()},
}


@dataclass(frozen=True)
class Row:
    number: str
    letter: str
    name: str
    snippet: str
    others: tuple[str, ...]
    remark: str
    message: str
    help: str


def read_row(line: str) -> Row:
    code, name, change, message, advice = (html.unescape(cell.strip()) for cell in line.strip().strip("|").split(" | "))
    snippet = "\n".join(re.findall(r"`([^`]*)`", change))
    remark = "".join(re.findall(r"\([^)]*\)$", change))
    others = tuple(re.findall(r"\[(DC\d+)\]", re.sub(r"`[^`]*`", "", change)))
    return Row(*code.split(), name, snippet, others, remark, message, advice)


def rows() -> list[Row]:
    section = PAGE.split("## 12. Rules", 1)[1].split("\n## 13.", 1)[0].split("### Consumers")[0]
    return [
        read_row(re.sub(r"\|\s*\|$", "|  |", line)) for line in section.splitlines() if re.match(r"\| DC\d+ ", line)
    ]


ROWS = rows()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    remark = request.getfixturevalue("row").remark
    if remark:
        (tmp_path / "config.json").write_text(json.dumps(FILES[remark]), "utf-8")
    return tmp_path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_row(row: Row, folder: Path) -> None:
    text = changed(BASE, row.snippet)
    report = check_text(text.encode(), "base.yaml", folder)
    found = [each for each in report.diagnostics if each.code.number == row.number]
    assert {each.code.number for each in report.diagnostics} == {row.number, *row.others}, text
    assert [(each.message, each.help) for each in found] == [(row.message, row.help)]
    assert (found[0].code.name, found[0].severity) == (row.name, SEVERITIES[row.letter])


def test_base_is_clean(tmp_path: Path) -> None:
    assert check_text(BASE.encode(), "base.yaml", tmp_path).diagnostics == ()


def test_table_and_catalogue_name_the_same_codes() -> None:
    known = {code.number: code.name for code in catalogue() if "DC120" <= code.number < "DC300"}
    assert {row.number: row.name for row in ROWS} == known


def test_section_11_and_catalogue_name_the_same_codes() -> None:
    section = PAGE.split("## 11. Codes", 1)[1].split("\n## 12.", 1)[0]
    stated = dict(re.findall(r"(DC[01]\d\d) \| ([a-z0-9-]+)", section))
    assert stated == {code.number: code.name for code in catalogue() if code.number < "DC120"}
    assert all(code.severity is Severity.ERROR for code in catalogue() if code.number in stated)
