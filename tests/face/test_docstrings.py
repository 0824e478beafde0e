"""Examples in docstrings are true: all of them, in the API and below."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import draftc

RUNTIME = "draftc.runtime"  # its examples would travel into bundles; it has none


def with_examples() -> list[str]:
    names = [
        "draftc",
        *(found.name for found in pkgutil.walk_packages(draftc.__path__, "draftc.") if plain(found.name)),
    ]
    return [name for name in names if ">>>" in source_of(name)]


def plain(name: str) -> bool:
    return not name.startswith(RUNTIME) and not name.startswith("draftc.bundles.")


def source_of(name: str) -> str:
    loader = importlib.util.find_spec(name).loader
    return loader.get_source(name) or ""


@pytest.mark.parametrize("name", with_examples())
def test_examples_are_true(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    tried = doctest.testmod(module, verbose=False)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_every_function_of_the_api_has_an_example() -> None:
    from draftc import api

    examples = {name: doctest.DocTestFinder(recurse=False).find(getattr(api, name))[0].examples for name in api.__all__}
    assert {"check", "compile", "load"} <= {name for name, found in examples.items() if found}
