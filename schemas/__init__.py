"""JSON Schema documents of draftc, as data."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load(name: str) -> dict[str, Any]:
    """Return the schema document `name`, for example `layout-1`.

    Raises FileNotFoundError when draftc ships no such document.
    """
    document: dict[str, Any] = json.loads(text(name))
    return document


def text(name: str) -> str:
    """Return the text of the schema document `name` as it is shipped."""
    return files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
