"""Time `check` and `compile` on this machine: `python bench/cpu.py [folder for the results]`.

Cold figures are whole processes, started one after the other; the first is thrown away (it fills the disk cache).
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import RESULTS, write

REPEATS = 9
LAYOUT = "qwen3-8b-dflash"
GOALS = {"check_cold_s": 0.3, "check_100_s": 1.0, "compile_cold_s": 3.5, "compile_peak_gib": 0.4}


def draftc(*arguments: str) -> float:
    """Run the command line in a process of its own; return its seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "draftc.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def cold(*arguments: str) -> float:
    """Return the median seconds of `draftc arguments` in a fresh process."""
    draftc(*arguments)
    return statistics.median(draftc(*arguments) for _ in range(REPEATS))


def hundred_checks() -> float:
    """Return the seconds for checking 100 layouts in this process, all shipped ones in turn."""
    from draftc.spec.check import check_text
    from draftc.spec.sources import list_layouts, open_source

    sources = [open_source(name) for name in list_layouts()]
    check_text(sources[0].data, sources[0].file, sources[0].folder)
    began = time.perf_counter()
    for turn in range(100):
        source = sources[turn % len(sources)]
        check_text(source.data, source.file, source.folder)
    return time.perf_counter() - began


def peak_gib() -> float:
    """Return the largest resident memory of any child process so far, in GiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def main() -> None:
    """Measure, print, write."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    results = {"check_cold_s": cold("check", LAYOUT), "check_100_s": hundred_checks()}
    with tempfile.TemporaryDirectory() as out:
        os.environ["DRAFTC_CACHE"] = out
        results["compile_cold_s"] = cold("compile", LAYOUT, "--output", out)
    results["compile_peak_gib"] = peak_gib()
    rounded = {name: round(value, 3) for name, value in results.items()}
    print(write("cpu", {"measured": rounded, "goals": GOALS, "repeats": REPEATS}, folder), rounded)


if __name__ == "__main__":
    main()
