"""Runs the passes: numbers, times and logs them, counts operations, and verifies what each one left."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

from draftc.compiler.errors import UnknownNameError
from draftc.compiler.passes import PASSES
from draftc.compiler.passes.contract import Pass
from draftc.compiler.passes.verify import verify
from draftc.compiler.program import Options, PassReport, Program
from draftc.spec.suggest import ROUGHLY, did_you_mean

LEVELS = (0, 1, 2)
log = logging.getLogger(__name__)


def run_passes(program: Program, passes: tuple[Pass, ...] = PASSES) -> tuple[PassReport, ...]:
    """Run the passes that the program's options ask for, in order; return their reports.

    Raises `UnknownNameError` for options that name nothing, and whatever a pass raises. A pass that leaves a broken
    graph behind is a fault of draftc: `InternalError` names it.
    """
    return tuple(run_each(program, passes))


def run_each(program: Program, passes: tuple[Pass, ...] = PASSES) -> Iterator[PassReport]:
    """Do what `run_passes` does, and stop after each pass for a look at what it left."""
    for entry in chosen_passes(program.options, passes):
        yield _run(entry, passes.index(entry) + 1, program)


def chosen_passes(options: Options, passes: tuple[Pass, ...] = PASSES) -> tuple[Pass, ...]:
    """Return the passes that run under `options`.

    Raises `UnknownNameError` for an unknown level or pass, or when a pass is left without one that it requires.
    """
    if options.opt not in LEVELS:
        raise UnknownNameError(f"optimisation level {options.opt} is none of 0, 1, 2")
    names = [entry.name for entry in passes]
    for name in options.disable:
        if name not in names:
            hint = did_you_mean(name, names, ROUGHLY) or f"passes are {', '.join(names)}"
            raise UnknownNameError(f"there is no pass {name} to disable", help=hint)
    chosen = tuple(entry for entry in passes if entry.level <= options.opt and entry.name not in options.disable)
    for entry in chosen:
        _require_before(entry, [other.name for other in chosen])
    return chosen


def _require_before(entry: Pass, names: list[str]) -> None:
    missing = [name for name in entry.requires if name not in names]
    if missing:
        raise UnknownNameError(
            f"pass {entry.name} requires {', '.join(missing)}, which is disabled",
            help=f"disable {entry.name} as well",
        )


def _run(entry: Pass, number: int, program: Program) -> PassReport:
    before, start = program.operations, perf_counter()
    report = entry.run(program)
    seconds = perf_counter() - start
    if "verify" not in program.options.disable:
        verify(program, after=entry.name)
    after = program.operations
    log.info("pass %d %s: %.1f ms, %s", number, entry.name, seconds * 1e3, "; ".join(report.notes) or "no change")
    return replace(report, number=number, seconds=seconds, before=before, after=after, changed=before != after)
