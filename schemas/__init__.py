"""JSON Schema documents of draftc, as data."""

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

SUFFIX = ".schema.json"


@cache
def load(name: str) -> dict[str, Any]:
    """Return the schema document `name`, for example `layout-1`.

    Raises FileNotFoundError when draftc ships no such document.
    """
    document: dict[str, Any] = json.loads(text(name))
    return document


def text(name: str) -> str:
    """Return the text of the schema document `name` as it is shipped. Raises FileNotFoundError."""
    return path(name).read_text(encoding="utf-8")


def path(name: str) -> Traversable:
    """Return where the schema document `name` lies. Raises FileNotFoundError."""
    if name not in names():
        raise FileNotFoundError(f"{name}{SUFFIX}")
    return files(__name__).joinpath(f"{name}{SUFFIX}")


def names() -> list[str]:
    """Return the names of all schema documents, sorted."""
    documents = (file.name for file in files(__name__).iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in documents if name.endswith(SUFFIX))
