"""Commands are imported when they are asked for, and nothing that lists them misses one."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from draftc.cli import COMMANDS
from draftc.commands.lazy import Commands

ROOT = Path(__file__).parents[2]


def completed(words: str, shell: str) -> str:
    command = [sys.executable, "-c", "from draftc.cli import app; app(prog_name='draftc')"]
    asked = {"_DRAFTC_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": "1"}
    env = os.environ | asked | {"_TYPER_COMPLETE_ARGS": words}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_name_a_summary_and_help_for_each_parameter(name: str) -> None:
    command = Commands(COMMANDS)[name]
    assert command.name == name
    assert command.get_short_help_str()
    assert all(parameter.help for parameter in command.params if parameter.name != "help")


def test_help_lists_every_command(terminal) -> None:
    ran = terminal("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert f" {name} " in ran.words


def test_completion_knows_every_command_and_its_options() -> None:
    assert completed("draftc ", "bash").split() == list(COMMANDS)
    assert completed("draftc ch", "bash").split() == ["check"]
    assert "every problem in one run" in completed("draftc ch", "zsh")
    assert "--deny-warnings" in completed("draftc check --d", "zsh")


def test_a_misspelt_command_is_answered_with_the_near_ones(terminal) -> None:
    ran = terminal("chek")
    assert ran.code == 2
    assert "Did you mean 'check'" in ran.words


@pytest.mark.parametrize("arguments", [["check", "qwen3-4b-dflash"], ["--version"], ["chek"]], ids=" ".join)
def test_no_other_command_is_imported(arguments: list[str]) -> None:
    script = (
        "import sys, atexit\n"
        f"sys.argv = ['draftc', *{arguments!r}]\n"
        "atexit.register(lambda: print('LOADED', *(m.split('.')[2] for m in sys.modules"
        " if m.startswith('draftc.commands.'))))\n"
        "from draftc.cli import main\nmain()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    loaded = set(ran.stdout.splitlines()[-1].split()[1:])
    assert loaded & COMMANDS.keys() == set(arguments[:1]) & COMMANDS.keys()


def arguments_in(text: str) -> list[list[str]]:
    """The arguments of every `draftc ...` command in a text of shell lines, without redirections."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    words = [
        shlex.split(line.partition(" < ")[0].partition(" > ")[0], comments=True) for line in lines if "draftc " in line
    ]
    found = [line[next(i for i, word in enumerate(line) if word.endswith("draftc")) + 1 :] for line in words]
    return [[word for word in line if word != "&&"] for line in found]


def shown_in_documents() -> list[list[str]]:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    blocks = [block for text in texts for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    return [line for block in blocks for line in arguments_in(block) if line and line[0] in COMMANDS]


def shown_in_help() -> list[list[str]]:
    modules = [import_module(f"draftc.commands.{place.partition(':')[0]}") for place in COMMANDS.values()]
    return [line for module in modules for example in module.EXAMPLES for line in arguments_in(example)]


def test_every_command_shows_examples() -> None:
    assert {line[0] for line in shown_in_help()} == COMMANDS.keys()
    assert len(shown_in_documents()) >= 4


@pytest.mark.parametrize("arguments", [*shown_in_help(), *shown_in_documents()], ids=" ".join)
def test_every_example_is_a_command_that_there_is(arguments: list[str]) -> None:
    Commands(COMMANDS)[arguments[0]].make_context(arguments[0], arguments[1:])


def test_help_ends_with_the_examples(terminal) -> None:
    assert "Examples: draftc check layout.yaml other.yaml" in terminal("check", "--help").words
