"""The linker copies what is reached, in an order that runs, and nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from draftc.compiler.imports import Import, import_block, imports_of
from draftc.compiler.linker import Linked, LinkError, link
from draftc.compiler.sources import Symbol, defined_names, free_names, read_source

RUNTIME = Path(__file__).parents[2] / "runtime"

SOURCES = {
    "shapes.py": '''
"""Shapes."""

import math
from typing import Literal, NamedTuple

from .units import SCALE, widen

# Sides below this are degenerate.
SMALLEST = 1e-3


class Side(NamedTuple):
    """A side."""

    length: float

    def doubled(self) -> "Side":
        """Twice as long."""
        return Side(self.length * 2)


class Shape:
    """Plain class: methods may go."""

    def __init__(self, side: Side) -> None:
        self.side = side

    # Why area is here.
    def area(self) -> float:
        """Area."""
        return math.prod((self.side.length, self.height()))

    def height(self) -> float:
        """Height."""
        return widen(self.side.length)

    def unused(self) -> float:
        """Nobody calls this."""
        return forgotten(1.0)


class Square(Shape):
    """A class with a base keeps its methods."""

    def corners(self, kind: Literal["forgotten"] = "forgotten") -> int:
        """Four."""
        return 4 if kind else 0


def forgotten(x: float) -> float:
    """Only reached through a method that nobody calls."""
    return x


def measure(side: Side) -> float:  # noqa: ARG001 - a word to our tools
    """Entry."""
    shape = Square(side)  # a comment that stays
    forgotten = SMALLEST
    return shape.area() * SCALE + forgotten


def pick(x: float) -> float:
    """Replaced by the bundle."""
    return missing_everywhere(x)
''',
    "units.py": '''
"""Units."""

import os.path as paths

SCALE = 2.0
OTHER = paths.sep


def widen(x: float) -> float:
    """Widen."""
    return x * FACTOR


FACTOR = SCALE * 3
''',
    "more.py": "def widen(x):\n    return x\n",
    "slow.py": '''
"""A function that needs a kernel."""


def weigh(x):
    """Import when called."""
    try:
        from linkable.kernels import launch
    except ImportError as missing:
        raise RuntimeError(missing) from missing
    return launch(x)
''',
    "kernels.py": '''
"""Copied whole."""

import math

from .kernel_parts import half


@staticmethod
def launch(x):
    """Launch."""
    return half(math.floor(x))
''',
    "kernel_parts.py": "def half(x):\n    return x / 2\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "linkable"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, text in SOURCES.items():
        (folder / name).write_text(text.lstrip("\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    read_source.cache_clear()
    yield "linkable"
    read_source.cache_clear()


def run(linked: Linked, tail: str) -> str:
    program = import_block(linked.imports) + "\n\n" + linked.text + "\n\n" + tail
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_linked_text_runs_alone_and_holds_only_what_is_reached(package):
    linked = link([Symbol("linkable.shapes", "measure")])
    assert set(linked.names) == {"Side", "Shape", "Square", "SMALLEST", "SCALE", "FACTOR", "widen", "measure"}
    assert run(linked, "print(measure(Side(1.0)))") == str(1.0 * (1.0 * 6.0) * 2.0 + 1e-3)
    assert linked.imports == {Import("math"), Import("typing", "NamedTuple"), Import("typing", "Literal")}


def test_names_that_only_a_local_variable_or_a_literal_has_are_not_reached(package):
    assert "forgotten" not in link([Symbol("linkable.shapes", "measure")]).names


def test_methods_go_only_from_classes_without_bases(package):
    text = link([Symbol("linkable.shapes", "measure")]).text
    assert "def unused" not in text
    assert "def area" in text
    assert "def height" in text
    assert "def corners" in text
    assert "def doubled" in text


def test_a_method_stays_when_code_outside_of_the_linked_text_mentions_it(package):
    linked = link([Symbol("linkable.shapes", "measure")], attributes=frozenset({"unused"}))
    assert "def unused" in linked.text
    assert "forgotten" in linked.names


def test_comments_survive_and_words_to_our_tools_do_not(package):
    text = link([Symbol("linkable.shapes", "measure")]).text
    assert "# Sides below this are degenerate.\nSMALLEST = 1e-3\n" in text
    assert "    # Why area is here.\n    def area" in text
    assert "# a comment that stays" in text
    assert "noqa" not in text


def test_values_stand_before_what_evaluates_them(package):
    linked = link([Symbol("linkable.units", "widen")])
    assert linked.names.index("SCALE") < linked.names.index("FACTOR")
    assert run(linked, "print(widen(1.0))") == "6.0"


def test_a_replaced_definition_brings_its_own_names(package):
    new = "def pick(x: float) -> float:\n    return forgotten(x) + 1\n"
    linked = link([Symbol("linkable.shapes", "pick")], replaced={"pick": new})
    assert linked.names == ("forgotten", "pick")
    assert run(linked, "print(pick(1.0))") == "2.0"


def test_a_provided_name_is_imported_and_not_copied(package):
    linked = link([Symbol("linkable.shapes", "measure")], provided={"Side": ".sides"})
    assert "class Side" not in linked.text
    assert Import(".sides", "Side") in linked.imports


def test_a_missing_root_and_a_doubled_name_are_errors(package):
    with pytest.raises(LinkError, match="defines no nothing"):
        link([Symbol("linkable.shapes", "nothing")])
    with pytest.raises(LinkError, match="widen is defined in"):
        link([Symbol("linkable.units", "widen"), Symbol("linkable.more", "widen")])


def test_import_blocks_are_what_ruff_would_write():
    source = (
        "import torch\nimport torch.nn.functional as F\nfrom transformers.cache_utils import Cache, DynamicCache\n"
        "import math\nfrom typing import ClassVar\nfrom collections.abc import Callable\n"
        "from torch import Tensor, nn, ones, FloatTensor\nfrom .configuration_x import XConfig, DraftConfig, CONSTANT\n"
        "from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, "
        + ", ".join(f"a_long_name_of_something_{letter}" for letter in "cabd")
        + "\n"
    )
    found = [entry for node in ast.parse(source).body for entry in imports_of(node)]
    block = import_block(found)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "I", "--line-length", "120", "-"]
    subprocess.run(command, input=block + "\nx = 1\n", text=True, check=True, capture_output=True)
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "-"],
        input=block, text=True, check=True, capture_output=True,
    ).stdout  # fmt: skip
    assert formatted == block


def linkable_modules() -> list[str]:
    found = sorted(RUNTIME.rglob("*.py"))
    names = [".".join(("draftc", "runtime", *path.relative_to(RUNTIME).with_suffix("").parts)) for path in found]
    plain = [name.removesuffix(".__init__") for name in names if name not in companions()]
    linked = [name for name in plain if not name.startswith("draftc.runtime.train")]  # no bundle trains
    return [name for name in linked if name.rsplit(".")[-1] not in UNLINKED]


def companions() -> list[str]:
    """Files of kernels: decorators of an optional package run when they are imported, so they are copied whole."""
    found = sorted([*RUNTIME.rglob("triton_*.py"), *RUNTIME.rglob("gluon_*.py")])
    return [".".join(("draftc", "runtime", *path.relative_to(RUNTIME).with_suffix("").parts)) for path in found]


UNLINKED = ("request", "registry", "blocks")


def test_companions_import_torch_the_standard_library_and_each_other():
    known = companions()
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    for module in known:
        source = read_source(module)
        for found in source.bound.values():
            assert found.module in known or found.module.partition(".")[0] in allowed, (
                f"{module} imports {found.module}"
            )


@pytest.mark.parametrize("module", linkable_modules())
def test_runtime_modules_obey_the_rules(module):
    source = read_source(module)
    allowed = {"torch", "transformers", "draftc", *sys.stdlib_module_names}
    for statement in source.tree.body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        imported = isinstance(statement, ast.Import | ast.ImportFrom)
        assert docstring or imported or defined_names(statement), f"{module}:{statement.lineno}"
    for found in source.bound.values():
        assert found.module.partition(".")[0] in allowed, f"{module} imports {found.module}"
        assert not found.module.startswith("draftc") or found.module.startswith("draftc.runtime"), module
        assert not found.module.startswith("draftc") or found.alias is None, f"{module} renames {found.bound}"
    for node in ast.walk(source.tree):
        assert not (isinstance(node, ast.ImportFrom) and node.names[0].name == "*"), module


def test_top_level_names_of_runtime_are_unique():
    seen: dict[str, str] = {}
    for module in linkable_modules():
        for name in read_source(module).definitions:
            assert name not in seen, f"{name} in {module} and {seen.get(name)}"
            seen[name] = module


def test_optional_packages_are_imported_inside_try():
    core = {"torch", "transformers", "draftc", *sys.stdlib_module_names}
    for module in linkable_modules():
        tree = read_source(module).tree
        guarded = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Try) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
                outside = {entry.module.partition(".")[0] for entry in imports_of(node)} - core
                assert not outside or id(node) in guarded, f"{module}:{node.lineno} imports {outside}"


def test_free_names_see_through_scopes():
    tree = ast.parse(
        "def f(a: 'tuple[T, ...]', *b, c=D):\n"
        "    g = [x + y for x in a]\n"
        "    def h(z): return z + w + g\n"
        "    with open(p) as q: r = q\n"
        "    return lambda k: k + m\n"
    )
    assert set(free_names(tree.body[0])) == {"tuple", "T", "D", "y", "w", "open", "p", "m"}


def test_text_is_parted_so_that_the_first_part_stands_alone(package):
    linked = link([Symbol("linkable.shapes", "forgotten"), Symbol("linkable.shapes", "measure")])
    first = link([Symbol("linkable.units", "widen")], attributes=linked.attributes)
    before, after = linked.parted(first.names)
    assert "def widen" in before
    assert "class Shape" in after
    namespace: dict = {}
    exec(import_block(linked.imports) + before, namespace)
    assert namespace["widen"](1.0) == 6.0
    exec(after, namespace)
    assert namespace["measure"](namespace["Side"](1.0)) == 12.001


def test_modules_that_functions_import_are_copied_whole_beside_the_text(package, tmp_path):
    linked = link([Symbol("linkable.slow", "weigh")])
    assert linked.names == ("weigh",)
    assert list(linked.companions) == ["kernel_parts.py", "kernels.py"]
    assert linked.companions["kernels.py"] == SOURCES["kernels.py"].lstrip("\n")
    folder = tmp_path / "alone" / "bundle"
    folder.mkdir(parents=True)
    for name, text in linked.companions.items():
        (folder / name).write_text(text)
    (folder / "model.py").write_text(import_block(linked.imports) + linked.text)
    script = "import sys; sys.path.insert(0, '.'); from bundle.model import weigh; print(weigh(5.5))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path / "alone", capture_output=True, text=True, check=True
    )
    assert done.stdout == "2.5\n"
