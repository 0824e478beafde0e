"""What every result file holds beside its numbers: date, machine and versions."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("draftc", "torch", "transformers", "triton", "fla-core", "PyYAML", "jsonschema")


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that matter here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def card() -> str | None:
    """Return the name of the CUDA card, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def write(name: str, results: dict[str, Any], folder: Path = RESULTS, **facts: Any) -> Path:
    """Write `results` to `<folder>/<name>.json` and return the path."""
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine(), **facts},
        "versions": versions(),
        "results": results,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
