"""What README.md shows is what draftc says and writes."""

import re
from pathlib import Path

import draftc
from draftc.spec.check import check_text
from draftc.spec.render import text

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_layout_becomes_the_class_that_is_shown() -> None:
    layout = check_text(blocks("yaml")[0], "layout.yaml", None).require()
    model = draftc.compile(layout).files["modeling_qwen3_4b_kda_gqa.py"]
    lines = blocks("python")[0].strip().splitlines()
    written = model[model.index(lines[0]) :].split("\n\n\n")[0].splitlines()
    assert lines[:2] == written[:2]  # the name and the docstring; the constructor is not shown
    start = lines.index("")
    assert lines[start + 1 :] == written[written.index(lines[start + 1]) :]


def test_the_mistake_is_said_as_shown() -> None:
    wrong = blocks("yaml")[0].replace("num_key_value_heads: 8", "num_key_value_heads: 6")
    found = text.render([check_text(wrong, "layout.yaml", None)])
    assert found.partition("\n\n")[0] == blocks("text")[0].rstrip("\n")
    assert found.rstrip().endswith("\n\n1 error")
