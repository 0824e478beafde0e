"""Time and memory of what runs on a CUDA card, as every script here takes them."""

import statistics
from collections.abc import Callable
from functools import partial

import torch


def elapsed(step: Callable[[], object]) -> float:
    """Milliseconds between two events around `step`, with the card idle before it."""
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def call_ms(step: Callable[[], object], repeats: int = 15) -> float:
    """Median milliseconds of one eager call, after three that are not timed."""
    for _ in range(3):
        step()
    return round(statistics.median(elapsed(step) for _ in range(repeats)), 3)


def peak_gib(step: Callable[[], object]) -> float:
    """GiB that `step`, which ran before, adds at its peak to what lies in memory."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)


def tune_briefly() -> None:
    """Let Triton's autotuners time a candidate for 25 ms and not 100: fla-core has some 180 of them a case."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    Autotuner.do_bench = staticmethod(partial(do_bench, warmup=8, rep=25))


def take_first_candidates() -> None:
    """Let Triton's autotuners look at their first two candidates only; two, since some ask for more than a card has."""
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs
    Autotuner.prune_configs = lambda self, kwargs: prune(self, kwargs)[:2]
    Autotuner.do_bench = staticmethod(run_once)


def run_once(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
    """Take the place of an autotuner's clock: `call()`, and as many equal times as `quantiles`."""
    call()
    return [1.0] * len(quantiles)
