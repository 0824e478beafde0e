"""Commands are imported when they are asked for, and nothing that lists them misses one."""

import os
import subprocess
import sys

import pytest

from draftc.cli import COMMANDS
from draftc.commands.lazy import Commands


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
