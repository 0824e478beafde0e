"""Compile what fla-core's autotuner tries, side by side, into Triton's cache: `python bench/tune.py [processes]`.

A case has some 180 candidates, which the autotuner compiles one after the other when it meets the case: minutes. Here
every process takes its share of them. Whoever runs the case afterwards finds them compiled, and only times them.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import kda
import torch
from clock import run_once
from triton.runtime.autotuner import Autotuner

PROCESSES = 14


def take_share(number: int, count: int) -> None:
    """Let autotuners of this process try every `count`-th of their candidates, the first of them `number`.

    The first candidates are tried as well: what is alone is not timed but run, and some ask for more than a card has.
    Each is run once and not timed.
    """
    prune = Autotuner.prune_configs

    def share(self: Autotuner, kwargs: Mapping[str, Any]) -> list[Any]:
        configs = prune(self, kwargs)
        return list(dict.fromkeys([*configs[number % len(configs) :: count], *configs[:2]]))

    Autotuner.prune_configs = share
    Autotuner.do_bench = staticmethod(run_once)


def core_case(heads: int) -> None:
    """What `kda.py` runs at the core and in the layer, with fewer heads in the hybrid draft."""
    inputs = kda.core_inputs(16, heads=heads)
    kda.both_ways("kda_fla", inputs, -5.0, torch.randn_like(inputs[2]).detach())


def part_case() -> None:
    """What `kda.py` runs around the core."""
    for part, forms in kda.part_forms().items():
        for blocks in (kda.BLOCKS, 1):
            inputs = kda.part_inputs(part, blocks)
            out = forms["fla-core"](*inputs)
            torch.autograd.grad(out, inputs, torch.randn_like(out).detach())


CASES: dict[str, Callable[[], None]] = {
    "core": partial(core_case, kda.HEADS),
    "hybrid": partial(core_case, 16),
    "parts": part_case,
}


def work(number: int, count: int) -> None:
    """Compile the share of process `number` of `count`."""
    take_share(number, count)
    for name, case in CASES.items():
        case()
        print(f"tune {number}: {name} done", flush=True)


def main() -> None:
    """Start the processes, and fail if one did."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else min(PROCESSES, os.cpu_count() or 1)
    workers = [multiprocessing.get_context("spawn").Process(target=work, args=(n, count)) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(max(worker.exitcode or 0 for worker in workers))


if __name__ == "__main__":
    main()
