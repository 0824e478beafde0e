"""What every result file holds beside its numbers: date, machine and versions."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SECONDS = float(os.environ.get("BENCH_SECONDS", "600"))
BEGAN = time.perf_counter()
Section = Iterator[tuple[str, Callable[[], Any]]]  # the cases of a section, and what measures each
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


def out_of_time() -> str | None:
    """Say that BENCH_SECONDS are over, None before."""
    spent = time.perf_counter() - BEGAN
    return f"left out after {spent:.0f} s" if spent > SECONDS else None


def run_sections(name: str, sections: Mapping[str, Callable[[], Section]]) -> None:
    """Run the sections that the command line names, all by default: `SCRIPT [folder [section ...]]`.

    Every case is written when it ends, beside what the file holds from before, so that a run that is cut off loses the
    case in work only. A case that BENCH_SECONDS leave no time for says so.
    """
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    path = folder / f"{name}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for section in sys.argv[2:] or sections:
        results.setdefault(section, {})
        for case, measure in sections[section]():
            results[section][case] = out_of_time() or measure()
            print(section, case, results[section][case], flush=True)
            write(name, results, folder, card=card())
