"""Renderers: the same findings as a frame, a line, JSON, SARIF and workflow commands."""

import json
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from draftc.schemas import load
from draftc.spec.codes import DUPLICATE_KEY, OUT_OF_BOUNDS
from draftc.spec.diagnostic import Code, Diagnostic, Label, Severity
from draftc.spec.reader import read
from draftc.spec.render import concise, github, sarif, text
from draftc.spec.render import json as json_renderer
from draftc.spec.source import Source

WARNING = Code("DC204", "draft-width-differs", Severity.WARNING)
NOTE = Code("DC245", "target-key-alias", Severity.NOTE)


@dataclass(frozen=True)
class Run:
    """What a check found, without the check."""

    file: str
    text: str
    diagnostics: tuple[Diagnostic, ...] = ()
    allowed: tuple[Diagnostic, ...] = ()


TEXT = "draftc: 1\nblock_size: 1\nname: é中\nblock_size: 2\n"
SOURCE = Source("a,b:c%.yaml", TEXT)
TWICE = Diagnostic(
    DUPLICATE_KEY,
    "key block_size is given twice",
    SOURCE.span(33, 43),
    (Label(SOURCE.span(10, 20), "it is first given here"),),
    ("a note",),
    "keep one of them",
    (("block_size", 2), ("limit", float("inf"))),
)
WIDE = Diagnostic(WARNING, "100% wide\nreally", SOURCE.span(30, 31))
HINT = Diagnostic(NOTE, "read from n_embd", SOURCE.span(0, 6))
RUN = Run(SOURCE.file, TEXT, (TWICE, WIDE), (HINT,))


def test_text_shows_both_places_notes_and_help() -> None:
    assert text.render([Run(SOURCE.file, TEXT, (TWICE,))]) == (
        "error[DC005 duplicate-key]: key block_size is given twice\n"
        " --> a,b:c%.yaml:4:1\n"
        "  |\n"
        "2 | block_size: 1\n"
        "  | ---------- it is first given here\n"
        "3 | name: é中\n"
        "4 | block_size: 2\n"
        "  | ^^^^^^^^^^\n"
        "  = note: a note\n"
        "  = help: keep one of them\n"
        "\n"
        "1 error\n"
    )


def test_text_underlines_wide_letters_and_tabs_in_columns() -> None:
    source = Source("f", "\té中x")
    shown = text.render([Run("f", source.text, (Diagnostic(OUT_OF_BOUNDS, "m", source.span(2, 4)),))])
    assert "1 |     é中x\n  |      ^^^\n" in shown


def test_text_colours_only_when_asked_and_never_obeys_the_file() -> None:
    source = Source("f", "a: \x1b[31mred\u202e")
    run = Run("f", source.text, (Diagnostic(OUT_OF_BOUNDS, "bad \x1b[0m", source.span(3, 4)),))
    assert "\x1b" not in text.render([run])
    coloured = text.render([run], color=True)
    assert "\x1b[1;31m" in coloured
    assert "\x1b[31mred" not in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text.render([run])


def test_text_names_places_in_other_files() -> None:
    other = Source("config.json", "{}")
    found = Diagnostic(OUT_OF_BOUNDS, "m", SOURCE.span(0, 1), (Label(other.span(0, 1), "from here"),))
    assert "= see: config.json:1:1: from here" in text.render([Run(SOURCE.file, TEXT, (found,))])


def test_text_cuts_long_lines() -> None:
    source = Source("f", "x" * 5000)
    shown = text.render([Run("f", source.text, (Diagnostic(OUT_OF_BOUNDS, "m", source.span(4000, 4010)),))])
    assert max(map(len, shown.splitlines())) < 200
    assert "^" in shown


def test_text_counts() -> None:
    assert text.render([RUN]).endswith("\n1 error, 1 warning, 1 allowed\n")
    assert text.render([Run("f", "")]) == "no problems\n"
    assert text.render([Run("f", ""), RUN]).endswith("1 error, 1 warning, 1 allowed in 2 layouts\n")


def test_concise_is_one_line_a_finding() -> None:
    assert concise.render([RUN]) == (
        "a,b:c%.yaml:4:1: DC005 error: key block_size is given twice\n"
        "a,b:c%.yaml:3:7: DC204 warning: 100% wide really\n"
    )
    assert concise.render([]) == ""


def test_github_escapes_what_its_commands_are_made_of() -> None:
    first, second = github.render([RUN]).splitlines()
    assert first == (
        "::error file=a%2Cb%3Ac%25.yaml,line=4,endLine=4,col=1,endColumn=10,title=DC005 duplicate-key::"
        "key block_size is given twice%0Aa,b:c%25.yaml:2:1: it is first given here%0A"
        "note: a note%0Ahelp: keep one of them"
    )
    assert second.startswith("::warning ")
    assert second.endswith("::100%25 wide%0Areally")
    assert github.command(HINT).startswith("::notice ")


REPORT = Draft202012Validator(load("report-1"))


def test_json_follows_its_schema_and_counts_bytes() -> None:
    Draft202012Validator.check_schema(load("report-1"))
    report = json.loads(json_renderer.render([RUN]))
    REPORT.validate(report)
    assert (report["valid"], report["error_count"], report["warning_count"], report["allowed_count"]) == (
        False,
        1,
        1,
        1,
    )
    twice = report["diagnostics"][0]
    # é takes two bytes and 中 three, so the byte runs ahead of the character by three.
    assert twice["range"]["start"] == {"line": 4, "column": 1, "byte": 37}
    assert TEXT.encode()[36:46] == b"block_size"
    assert twice["secondary"][0]["range"]["start"] == {"line": 2, "column": 1, "byte": 11}
    assert twice["values"] == {"block_size": 2, "limit": "inf"}


def test_json_of_a_clean_run_is_valid() -> None:
    report = json.loads(json_renderer.render([Run("f", "")]))
    REPORT.validate(report)
    assert report["valid"]
    assert report["diagnostics"] == []


def test_json_gives_no_byte_for_another_file() -> None:
    found = Diagnostic(OUT_OF_BOUNDS, "m", Source("other", "x").span(0, 1))
    report = json.loads(json_renderer.render([Run("f", "", (found,))]))
    REPORT.validate(report)
    assert "byte" not in report["diagnostics"][0]["range"]["start"]


# The constraints of SARIF 2.1.0 on what is written here; no package of the index ships the official schema.
PLACE = {
    "type": "object",
    "required": ["artifactLocation", "region"],
    "properties": {
        "artifactLocation": {
            "required": ["uri"],
            "properties": {"uri": {"type": "string", "pattern": r"^[^\s%]*(%[0-9A-F]{2}[^\s%]*)*$"}},
        },
        "region": {
            "properties": {
                **{
                    name: {"type": "integer", "minimum": 1}
                    for name in ("startLine", "startColumn", "endLine", "endColumn")
                },
                **{name: {"type": "integer", "minimum": 0} for name in ("charOffset", "charLength")},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
WORDS = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "ruleIndex", "level", "locations"],
    "properties": {
        "message": WORDS,
        "level": LEVEL,
        "ruleIndex": {"type": "integer", "minimum": 0},
        "locations": {
            "minItems": 1,
            "items": {"required": ["physicalLocation"], "properties": {"physicalLocation": PLACE}},
        },
        "relatedLocations": {
            "uniqueItems": True,
            "items": {
                "properties": {"physicalLocation": PLACE, "message": WORDS, "id": {"type": "integer", "minimum": 0}}
            },
        },
        "suppressions": {"items": {"required": ["kind"], "properties": {"kind": {"enum": ["inSource", "external"]}}}},
    },
}
SARIF = Draft202012Validator(
    {
        "type": "object",
        "required": ["version", "runs"],
        "properties": {
            "version": {"const": "2.1.0"},
            "$schema": {"type": "string", "pattern": "^https://"},
            "runs": {
                "items": {
                    "required": ["tool", "results"],
                    "properties": {
                        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                        "results": {"items": RESULT},
                        "artifacts": {"uniqueItems": True},
                    },
                }
            },
        },
        "additionalProperties": False,
    }
)


def test_sarif_keeps_the_constraints_of_2_1_0() -> None:
    log = json.loads(sarif.render([RUN, Run("ä b.yaml", "x")]))
    SARIF.validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["DC005", "DC204", "DC245"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    assert [bool(result.get("suppressions")) for result in run["results"]] == [False, False, True]
    assert run["artifacts"][1]["location"]["uri"] == "%C3%A4%20b.yaml"
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert TEXT[region["charOffset"] : region["charOffset"] + region["charLength"]] == "block_size"


@pytest.mark.parametrize("renderer", [text, concise, json_renderer, sarif, github])
def test_renderers_answer_an_empty_run(renderer: object) -> None:
    assert isinstance(renderer.render([]), str)


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(["a: ", "\n", "\t", "é", "中", "{", "'", "010"]), max_size=12).map("".join),
    )
)
def test_whatever_the_reader_finds_can_be_rendered(data: str) -> None:
    document = read(data, "f")
    run = Run("f", document.text, document.diagnostics)
    REPORT.validate(json.loads(json_renderer.render([run])))
    SARIF.validate(json.loads(sarif.render([run])))
    assert (
        len(github.render([run]).splitlines()) == len(concise.render([run]).splitlines()) == len(document.diagnostics)
    )
    assert text.render([run]).count("-->") >= len(document.diagnostics)
