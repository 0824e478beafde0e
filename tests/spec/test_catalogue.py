"""The catalogue of failures: each line that says `# ~ ERROR DC203` gives that diagnostic, and nothing else is given.

A file of `tests/catalogue` holds several layouts, each under a line `#=== what it shows`. They come from failures that
users had; a layout without an expectation is one that must be accepted.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from draftc.spec.check import check_text

FOLDER = Path(__file__).parents[1] / "catalogue"
EXPECTED = re.compile(r"~ (ERROR|WARNING|NOTE) (DC\d{3})")
HEAD = "#=== "
Finding = tuple[int, str, str]


def split(path: Path) -> list[tuple[str, str]]:
    """The layouts of a file by title; blank lines stand for what precedes one, so that it keeps its line numbers."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith(HEAD)]
    bounds = zip(starts, [*starts[1:], len(lines)], strict=True)
    return [
        (
            f"{path.stem}: {lines[start].removeprefix(HEAD).strip()}",
            "\n" * (start + 1) + "".join(lines[start + 1 : end]),
        )
        for start, end in bounds
    ]


CASES = [case for path in sorted(FOLDER.glob("*.yaml")) for case in split(path)]


def expected(text: str) -> Counter[Finding]:
    return Counter(
        (number, word.lower(), code)
        for number, line in enumerate(text.splitlines(), 1)
        for word, code in EXPECTED.findall(line)
    )


@pytest.mark.parametrize("text", [text for _, text in CASES], ids=[name for name, _ in CASES])
def test_case(text: str) -> None:
    report = check_text(text.encode(), "case.yaml", FOLDER)
    found = Counter((each.span.start.line, each.severity.value, each.code.number) for each in report.diagnostics)
    assert found == expected(text), [f"{each.span} {each.code}: {each.message}" for each in report.diagnostics]


def test_names_are_unique() -> None:
    assert len({name for name, _ in CASES}) == len(CASES)


def test_a_misplaced_expectation_fails() -> None:
    good = next(text for _, text in CASES if "ERROR DC203" in text)
    moved = good.replace("  # ~ ERROR DC203", "").replace("draftc: 1", "draftc: 1  # ~ ERROR DC203")
    with pytest.raises(AssertionError):
        test_case(moved)
