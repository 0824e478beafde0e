"""Time `check` and `compile` on this machine: `python bench/cpu.py [folder for the results]`.

Cold figures are whole processes, started one after the other; the first is thrown away: it fills the disk cache, and a
folder of bytecode from which the others read, as an installed package does whatever PYTHONDONTWRITEBYTECODE says here.
Beside the seconds on the clock stand those of the processor, user and system together, which other work on the machine
changes less; each as the median and the least of the repeats.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from record import RESULTS, write

REPEATS = 15
LAYOUT = "qwen3-8b-dflash"
GOALS = {"check_cold_s": 0.3, "check_100_s": 1.0, "compile_cold_s": 3.5, "compile_peak_gib": 0.4}


@dataclass(frozen=True)
class Spent:
    """Seconds of one process, on the clock and of the processor."""

    clock: float
    processor: float


def processor_s() -> float:
    """Return the processor seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def draftc(*arguments: str, **environment: str) -> Spent:
    """Run the command line in a process of its own."""
    began, used = time.perf_counter(), processor_s()
    command = [sys.executable, "-m", "draftc.cli", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | environment)
    return Spent(time.perf_counter() - began, processor_s() - used)


def cold(name: str, *arguments: str, **environment: str) -> dict[str, float]:
    """Return what `draftc arguments` takes in a fresh process, under keys that begin with `name`."""
    draftc(*arguments, **environment)
    spent = [draftc(*arguments, **environment) for _ in range(REPEATS)]
    clock, processor = [one.clock for one in spent], [one.processor for one in spent]
    return {
        f"{name}_s": statistics.median(clock),
        f"{name}_least_s": min(clock),
        f"{name}_processor_s": statistics.median(processor),
        f"{name}_processor_least_s": min(processor),
    }


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
    with tempfile.TemporaryDirectory() as out:
        cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{out}/bytecode"}
        results = cold("check_cold", "check", LAYOUT, **cached)
        results["check_100_s"] = hundred_checks()
        results |= cold("compile_cold", "compile", LAYOUT, "--output", out, DRAFTC_CACHE=out, **cached)
    results["compile_peak_gib"] = peak_gib()
    rounded = {name: round(value, 3) for name, value in results.items()}
    print(write("cpu", {"measured": rounded, "goals": GOALS, "repeats": REPEATS}, folder), rounded)


if __name__ == "__main__":
    main()
