"""The commands as a person at a terminal meets them: output, exit codes, and nothing heavy on the light paths."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftc.spec.check import check_text
from draftc.spec.first_layout import first_layout
from draftc.spec.sources import list_targets

GOOD = "qwen3-4b-dflash"
BAD = """draftc: 1
name: bad
family: dflash
target: qwen3-4b
target_layer_ids: [1, 40]
block_size: 16
mask_token_id: 151645
rope: {style: half, rope_theta: 1000000}
attentions:
  context: {kind: gqa, num_attention_heads: 32, num_key_value_heads: 6, head_dim: 128}
layers: [context]
"""
WARNS = BAD.replace("[1, 40]", "[1, 9]").replace("num_key_value_heads: 6", "num_key_value_heads: 8")


def draftc(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "draftc.cli", *arguments]
    env = os.environ | environment
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD, encoding="utf-8")
    return str(path)


def test_a_good_layout_exits_0() -> None:
    ran = draftc("check", GOOD)
    assert (ran.returncode, ran.stdout) == (0, "no problems\n")


def test_every_problem_in_one_run_and_exit_1(bad: str) -> None:
    ran = draftc("check", bad)
    assert ran.returncode == 1
    for code in ("DC203", "DC230", "DC251"):
        assert code in ran.stdout
    assert "2 errors, 1 warning" in ran.stdout


def test_warnings_exit_0_unless_denied() -> None:
    assert draftc("check", "-", stdin=WARNS).returncode == 0
    assert draftc("check", "--deny-warnings", "-", stdin=WARNS).returncode == 1


def test_several_layouts_in_one_run(bad: str) -> None:
    ran = draftc("check", bad, GOOD, "-", "--format", "concise", stdin=WARNS)
    assert ran.returncode == 1
    assert "bad.yaml:5:" in ran.stdout
    assert "<stdin>:7:" in ran.stdout


def test_a_layout_that_cannot_be_read_hides_no_problem_of_the_others(bad: str) -> None:
    ran = draftc("check", "nowhere.yaml", bad, "neither.yaml")
    assert ran.returncode == 2
    assert ran.stdout == draftc("check", bad).stdout
    assert "nowhere.yaml" in ran.stderr
    assert "neither.yaml" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_json_is_one_document(bad: str) -> None:
    report = json.loads(draftc("check", bad, "--format", "json").stdout)
    assert report["error_count"] == 2
    assert [found["code"] for found in report["diagnostics"]] == ["DC230", "DC251", "DC203"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "nowhere"), "no shipped layout is called nowhere"),
        (("check", "no/such/file.yaml"), "there is no file no/such/file.yaml = help: `draftc init` writes"),
        (("check",), "Missing argument"),
        (("explain", "DC999"), "no diagnostic is called DC999"),
        (("schema", "layout-9"), "no schema is called layout-9"),
        (("compile",), "nothing to compile"),
        (("compile", GOOD, "--capability", "nine"), "is not a compute capability"),
        (("inspect", GOOD, "--why", "hiden_size"), "did you mean `hidden_size`?"),
        (("verify", "no-such-bundle"), "is no bundle"),
    ],
)
def test_wrong_usage_says_so_without_a_traceback(terminal, arguments: tuple[str, ...], says: str) -> None:
    ran = terminal(*arguments)
    assert ran.code in (1, 2)
    assert says in ran.words
    assert "Traceback" not in ran.err


def test_exit_codes_are_those_of_the_process() -> None:
    assert draftc("explain", "DC999").returncode == 2
    assert "Traceback" not in draftc("check").stderr


def test_a_fault_of_ours_is_reported_as_ours(tmp_path: Path) -> None:
    breakage = "import draftc.spec.sources as s\ndef broken(_):\n    raise KeyError('lost')\ns.open_source = broken\n"
    script = f"{breakage}import sys\nsys.argv = ['draftc', 'check', 'x']\nfrom draftc.cli import main\nmain()\n"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "DC900 internal-error" in ran.stderr
    assert "fault of draftc" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_warnings_of_ours_name_no_line_of_code_and_those_of_others_do() -> None:
    script = (
        "import warnings, sys\n"
        "import draftc.spec.sources as s\n"
        "from draftc.runtime.generation.errors import BeyondPositionsWarning\n"
        "def warned(_):\n"
        "    warnings.warn('too far', BeyondPositionsWarning)\n"
        "    warnings.warn('of others', UserWarning)\n"
        "    raise OSError('enough')\n"
        "s.open_source = warned\n"
        "sys.argv = ['draftc', 'check', 'x']\nfrom draftc.cli import main\nmain()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "warning: too far" in ran.stderr.splitlines()
    assert "<string>:6: UserWarning: of others" in ran.stderr.splitlines()


LIGHT = [
    ("check", GOOD),
    ("check", "-"),
    ("schema",),
    ("explain", "DC203"),
    ("explain", "--list"),
    ("list",),
    ("inspect", GOOD, "--why", "hidden_size"),
    ("init", "first.yaml"),
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands_import_no_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = (
        "import sys, atexit\n"
        f"sys.argv = ['draftc', *{list(arguments)!r}]\n"
        "atexit.register(lambda: print('HEAVY', *({'torch', 'transformers'} & sys.modules.keys()), file=sys.stderr))\n"
        "from draftc.cli import main\nmain()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], input=BAD, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.stderr.splitlines()[-1].split() == ["HEAVY"]
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("target", list_targets())
def test_what_init_writes_checks(target: str) -> None:
    text = first_layout(target, f"{target}-dflash", depth=3, block_size=8, mask=11, schema="layout-1.schema.json")
    report = check_text(text, "new.yaml", None)
    assert report.diagnostics == ()
    assert len(report.require().layers) == 3


def test_init_takes_the_mask_of_a_shipped_layout_and_overwrites_nothing(tmp_path: Path) -> None:
    layout = tmp_path / "new.yaml"
    assert draftc("init", str(layout)).returncode == 0
    text = layout.read_text(encoding="utf-8")
    assert "mask_token_id: 151669" in text
    assert text.startswith("# yaml-language-server: $schema=layout-1.schema.json\n")
    assert (tmp_path / "layout-1.schema.json").is_file()
    again = draftc("init", str(layout))
    assert again.returncode == 2
    assert "exists" in again.stderr


def test_init_never_guesses_a_mask(tmp_path: Path) -> None:
    ran = draftc("init", str(tmp_path / "new.yaml"), "--target", "llama-3.1-8b")
    assert ran.returncode == 2
    assert "never guessed" in ran.stderr
    assert not (tmp_path / "new.yaml").exists()


def test_no_color_in_files_and_under_no_color(bad: str) -> None:
    assert "\x1b[" not in draftc("check", bad).stdout
    assert "\x1b[" not in draftc("check", bad, NO_COLOR="1").stdout
