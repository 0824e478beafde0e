"""A terminal inside this process, so that commands that load torch are tested without loading it again."""

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from draftc.cli import main

Terminal = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Everything that was written, with single spaces: tables and boxes break lines where they like."""
        return re.sub(r"[\s│]+", " ", self.out + self.err)


@pytest.fixture
def terminal(capsys, monkeypatch, tmp_path) -> Terminal:
    """Run `draftc ARGUMENTS` in a folder of its own, with a cache of its own."""
    monkeypatch.setenv("DRAFTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which `main` sets

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["draftc", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return run
