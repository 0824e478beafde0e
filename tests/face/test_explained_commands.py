"""The commands and modules on the pages of DC4xx and DC5xx do what the pages say."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from draftc.compiler.dims import as_dim, symbols
from draftc.compiler.errors import CompileError
from draftc.compiler.program import Unit
from draftc.compiler.shapes.infer import Inference
from draftc.compiler.shapes.values import TensorValue
from draftc.compiler.trace import trace
from draftc.spec.compiling_codes import COMPILING_CODES, INTERNAL_ERROR
from draftc.spec.explain import page

SHOWN = [code for code in COMPILING_CODES if code is not INTERNAL_ERROR]
IN_MODULES = [code for code in SHOWN if page(code.number).examples("bad", "python")]
AT_A_TERMINAL = [code for code in SHOWN if page(code.number).examples("bad", "console")]


def test_every_page_shows_something() -> None:
    assert {*IN_MODULES, *AT_A_TERMINAL} == set(SHOWN)


def errors_of(terminal, line: str) -> str:
    """Run a line of an example; return the errors that draftc gave."""
    words = shlex.split(line.removeprefix("$ "))
    if words[0] != "draftc":
        subprocess.run(line.removeprefix("$ "), shell=True, check=True)
        return ""
    return "".join(terminal(*words[1:]).err.partition("error")[1:])


@pytest.mark.parametrize("code", AT_A_TERMINAL, ids=lambda code: code.number)
def test_the_last_line_of_each_bad_example_gives_the_code_and_no_other_line_fails(terminal, code) -> None:
    for example in page(code.number).examples("bad", "console"):
        *before, last = (errors_of(terminal, line) for line in example.splitlines())
        assert set(before) <= {""}
        assert last.startswith(f"error[{code}]: ")
    for example in page(code.number).examples("good", "console"):
        assert {errors_of(terminal, line) for line in example.splitlines()} == {""}


def compiled(source: str, folder: Path) -> None:
    path = folder / f"example_{len(sys.modules)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    module = found.Example()
    traced = trace(module)
    unit = Unit("Example", "mlp", "", module, traced.graph, traced.source, traced.source.parameters, (0,))
    batch, _, queries, _, _ = symbols(16)
    block = TensorValue((batch, queries, as_dim(24)), "float32")
    Inference("float32", lambda name: pytest.fail(name)).unit(unit, (block,))


@pytest.mark.parametrize("code", IN_MODULES, ids=lambda code: code.number)
def test_modules_give_the_code_and_then_do_not(code, tmp_path: Path) -> None:
    for example in page(code.number).examples("bad", "python"):
        with pytest.raises(CompileError) as caught:
            compiled(example, tmp_path)
        assert caught.value.code == code
        assert caught.value.notes
    for example in page(code.number).examples("good", "python"):
        compiled(example, tmp_path)
