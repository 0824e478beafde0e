"""What the person at a terminal sees besides results: progress, colour, ends, and words for what cannot be read."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftc.commands.console import progress
from draftc.commands.reading import wants_color


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_goes_to_a_terminal_only(monkeypatch) -> None:
    screen, pipe = Screen(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress("compiling x"):
        pass
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress("compiling x"):
        pass
    assert "compiling x" in screen.getvalue()
    assert pipe.getvalue() == ""


def test_colour_is_for_terminals_that_want_it(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color(Screen())
    assert not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Screen())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("binary.yaml", bytes(range(256)), "error[DC001 not-utf-8]"),
        ("empty.yaml", b"", "error[DC009 not-one-mapping]: the file is empty"),
        ("list.yaml", b"- a\n- b\n", "error[DC009 not-one-mapping]"),
        ("tab.yaml", b"draftc: 1\n\tname: x\n", "error[DC"),
    ],
)
def test_files_that_are_no_layouts(terminal, name: str, content: bytes, says: str) -> None:
    Path(name).write_bytes(content)
    ran = terminal("check", name)
    assert ran.code == 1
    assert says in ran.out
    assert "= help:" in ran.out


@pytest.mark.parametrize(("argument", "says"), [("folder", "folder is a folder"), ("folder/", "folder/ is a folder")])
def test_a_folder_is_no_layout(terminal, argument: str, says: str) -> None:
    Path("folder").mkdir()
    for command in ("check", "compile", "inspect"):
        ran = terminal(command, argument)
        assert ran.code == 2
        assert says in ran.err


def test_a_folder_hides_no_shipped_layout(terminal) -> None:
    Path("qwen3-4b-dflash").mkdir()
    assert terminal("check", "qwen3-4b-dflash").code == 0


def test_init_writes_no_layout_that_check_refuses(terminal) -> None:
    ran = terminal("init", "new.yaml", "--name", "a b")
    assert ran.code == 2
    assert "DC107 bad-name" in ran.err
    ran = terminal("init", "new.yaml", "--mask-token-id", "99999999")
    assert "DC105 out-of-bounds" in ran.err
    assert not Path("new.yaml").exists()
    Path("folder").mkdir()
    assert terminal("init", "folder", "--force").code == 2


def test_an_interrupt_ends_quietly_and_leaves_whole_bundles(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftc.cli", "compile", "--all", "--output", str(tmp_path / "out"), "--quiet"]
    environment = os.environ | {"DRAFTC_CACHE": str(tmp_path / "cache")}
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not (tmp_path / "out").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "Traceback" not in err
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    assert all((folder / "manifest.json").is_file() for folder in (tmp_path / "out").iterdir())


def test_a_closed_pipe_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "draftc.cli", "explain", "--list"]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in ran.stderr
    assert "DC900" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("arguments", [("schema",), ("check", "qwen3-4b-dflash"), ("explain", "DC203")], ids=" ".join)
def test_a_full_disk_is_no_fault_of_draftc(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "draftc.cli", *arguments]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "error: No space left on device\n  = help: make room, or choose another place\n"


def test_a_closed_standard_input_is_said() -> None:
    ran = subprocess.run(
        f"exec {sys.executable} -m draftc.cli check - <&-", shell=True, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: standard input is closed\n  = help: name a file")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("init", f"{'a' * 300}.yaml"), "File name too long = help: choose a shorter name"),
        (("init", "file/x.yaml"), "cannot write file/x.yaml: "),
        (("check", "a" * 300), "no shipped layout is called"),
        (("compile", "smollm2-135m-dflash", "-o", "file"), "file is a file, and a folder is to be written = help:"),
        (("compile", "smollm2-135m-dflash", "-o", "file/x"), "a part of the path is a file; choose another path"),
        (("inspect", "bundle"), "bundle is a folder = help: did you mean bundle/layout.yaml?"),
    ],
)
def test_paths_that_cannot_be_are_refused_with_a_way_out(terminal, arguments: tuple[str, ...], says: str) -> None:
    Path("file").touch()
    Path("bundle").mkdir()
    Path("bundle/layout.yaml").touch()
    ran = terminal(*arguments)
    assert ran.code == 2
    assert says in ran.words
    assert "DC900" not in ran.err


@pytest.mark.parametrize(
    "arguments", [("check", "ä.yaml"), ("explain", "DC001"), ("inspect", "smollm2-135m-dflash"), ("--help",), ("chek",)]
)
def test_a_terminal_that_knows_ascii_only(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ä.yaml").write_text("draftc: 1\nname: Entwürfe\n", encoding="utf-8")
    command = [sys.executable, "-m", "draftc.cli", *arguments]
    env = os.environ | {"PYTHONIOENCODING": "ascii", "DRAFTC_CACHE": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, check=False, env=env, cwd=tmp_path)
    assert ran.returncode in (0, 1, 2)
    assert b"DC900" not in ran.stderr
    assert b"Traceback" not in ran.stderr
    assert ran.stdout + ran.stderr
