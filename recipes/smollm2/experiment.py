"""Train drafts of several kinds for SmolLM2-135M-Instruct on the same data and budget, and compare what they are worth.

`python -m recipes.smollm2.experiment all WORK TARGET --gguf-file FILE` does everything and goes on where it
stopped: data of the target's own answers, one run for each variant and seed, several at a time, then measurements one
at a time, then a report. Each part is a command as well.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from draftc import __version__
from draftc.loading import Source, load_target, load_tokenizer
from recipes.smollm2.corpus import capture_states, spread_out, store_target, write_answers
from recipes.smollm2.intervals import change
from recipes.smollm2.learning import bundle_folder, learn, run_folder
from recipes.smollm2.measuring import PARTS, Bench, measure, open_bench
from recipes.smollm2.prompts import TASKS
from recipes.smollm2.settings import BASELINE, CARD, FOLDER, TOY, TOY_VARIANT, VARIANTS, Variant

BUDGETS = {"card": CARD, "toy": TOY}
PRECISIONS = {"cuda": "bf16", "cpu": "fp32"}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PACKAGES = ("torch", "transformers", "triton", "safetensors")

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
Work = Annotated[Path, typer.Argument(help="Folder for data, runs and results.")]
Device = Annotated[str, typer.Option(help="cuda or cpu.")]
Size = Annotated[str, typer.Option("--budget", help="card or toy.")]
Names = Annotated[list[str] | None, typer.Option("--variant", help="Variant, repeatable; all by default.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Seed, repeatable; 0 by default.")]
Parallel = Annotated[int, typer.Option(help="Runs that train at a time.")]
Seconds = Annotated[float, typer.Option(help="Time for all training; what it cuts off stays unfinished.")]
Precision = Annotated[str | None, typer.Option(help="bf16 or fp32; what the device is best at by default.")]
Parts = Annotated[list[str] | None, typer.Option("--part", help=f"{', '.join(PARTS)}; repeatable, all by default.")]
Output = Annotated[Path, typer.Option(help="File of the results.")]
RESULTS = FOLDER / "results.json"


def named(table: Mapping[str, Any], what: str, name: str) -> Any:
    """The entry `name` of `table`. Raises `typer.BadParameter` for one that does not exist, with those that do."""
    if name not in table:
        raise typer.BadParameter(f"there is no {what} {name}; there are {', '.join(table)}")
    return table[name]


def chosen(names: Iterable[str] | None) -> list[Variant]:
    """The variants called `names`, all that are compared by default. Raises `typer.BadParameter`."""
    known = {variant.name: variant for variant in (*VARIANTS, TOY_VARIANT)}
    return [named(known, "variant", name) for name in names or (variant.name for variant in VARIANTS)]


def precision_of(device: str) -> str:
    """What `device` is best at. Raises `typer.BadParameter` for another device than the two that are known."""
    return str(named(PRECISIONS, "device", device))


@app.command()
def data(work: Work, target: Path, gguf_file: str | None = None, device: Device = "cuda", size: Size = "card") -> None:
    """Store the target, let it answer, and capture its states."""
    budget, precision = named(BUDGETS, "budget", size), precision_of(device)
    work.mkdir(parents=True, exist_ok=True)
    plain = work / "target"
    if not (plain / "config.json").exists():
        store_target(Source(str(target), gguf_file), plain)
        say("target stored")
    if not (work / "data.jsonl").exists():
        model, words = load_target(Source(str(plain)), DTYPES[precision], device), load_tokenizer(Source(str(plain)))
        unfinished = work / "data.partial"
        count = write_answers(
            model, words, spread_out(TASKS[budget.task]().training, budget.prompts), budget, unfinished
        )
        unfinished.rename(work / "data.jsonl")
        say(f"{count} tokens of answers")
    say(f"{capture_states(work, device, precision)} rows captured")


@app.command()
def train(work: Work, variant: str, seed: int = 0, device: Device = "cuda", size: Size = "card") -> None:
    """Train one variant."""
    learn(work, chosen([variant])[0], seed, named(BUDGETS, "budget", size), device, precision_of(device))


@app.command()
def runs(
    work: Work,
    variant: Names = None,
    seed: Seeds = None,
    parallel: Parallel = 1,
    seconds: Seconds = 86_400.0,
    device: Device = "cuda",
    size: Size = "card",
) -> None:
    """Train variants and seeds, several at a time."""
    train_all(work, pairs(variant, seed), parallel, device, size, seconds)


@app.command()
def measurements(
    work: Work,
    output: Output = RESULTS,
    variant: Names = None,
    seed: Seeds = None,
    part: Parts = None,
    precision: Precision = None,
    device: Device = "cuda",
    size: Size = "card",
) -> None:
    """Measure trained variants, one at a time, and report after each. Acceptance needs no card, speed does."""
    parts, dtype = chosen_parts(part), named(DTYPES, "precision", precision or precision_of(device))
    for _ in measure_all(work, pairs(variant, seed), parts, device, dtype, size):
        write_report(work, output, size)


def chosen_parts(names: Iterable[str] | None) -> list[str]:
    """The parts of a measurement called `names`, all by default. Raises `typer.BadParameter`."""
    wanted = list(names or PARTS)
    for name in wanted:
        named(PARTS, "part", name)
    return wanted


def pairs(names: Iterable[str] | None, seeds: Iterable[int] | None) -> list[tuple[Variant, int]]:
    """Every variant with every seed, the first seed of all first."""
    return [(variant, seed) for seed in seeds or [0] for variant in chosen(names)]


def train_all(
    work: Path, runs: Sequence[tuple[Variant, int]], parallel: int, device: str, size: str, seconds: float
) -> None:
    """Train `runs` in processes of their own, `parallel` at a time; what `seconds` cut off stays unfinished."""
    waiting = [run for run in runs if not (bundle_folder(work, *run) / "config.json").exists()]
    running: dict[tuple[Variant, int], subprocess.Popen[bytes]] = {}
    began = told = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < parallel:
            run = waiting.pop(0)
            running[run] = started(work, run, device, size)
        time.sleep(0.2)
        spent = time.perf_counter() - began
        if spent > seconds:
            for process in running.values():
                process.kill()
            say(f"out of time: {', '.join(run[0].name for run in (*running, *waiting))} not trained")
            return
        for run in [run for run, process in running.items() if process.poll() is not None]:
            say(f"{run[0].name}, seed {run[1]}: exit {running.pop(run).returncode} after {spent:.0f} s")
        if time.perf_counter() - told > 20 and running:
            told = time.perf_counter()
            say("; ".join(f"{run[0].name}: {last_line(run_folder(work, *run))}" for run in running))


def started(work: Path, run: tuple[Variant, int], device: str, size: str) -> subprocess.Popen[bytes]:
    """A process that trains one variant, its output in `log.txt` of its folder."""
    folder = run_folder(work, *run)
    folder.mkdir(parents=True, exist_ok=True)
    words = ["train", str(work), run[0].name, "--seed", str(run[1]), "--device", device, "--budget", size]
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "recipes.smollm2.experiment", *words]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=FOLDER.parents[1])


def last_line(folder: Path) -> str:
    """What a run printed last."""
    lines = (folder / "log.txt").read_text(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip()[-70:] for line in reversed(lines) if line.strip()), "")


def measured_file(work: Path, run: tuple[Variant, int]) -> Path:
    """Where the measurements of a run are kept."""
    return run_folder(work, *run) / "measured.json"


def measure_all(
    work: Path, runs: Sequence[tuple[Variant, int]], parts: Sequence[str], device: str, dtype: torch.dtype, size: str
) -> Iterator[str]:
    """Measure of every trained run the parts that are not measured yet; name each when it is done."""
    budget = named(BUDGETS, "budget", size)
    bench: Bench | None = None
    for run in runs:
        before = measured(work, run)
        missing = [part for part in parts if part not in before["measured_on"]]
        if not missing or not (bundle_folder(work, *run) / "config.json").exists():
            continue
        if bench is None:
            texts = spread_out(TASKS[budget.task]().held_out, budget.held_out)
            bench = open_bench(work / "target", texts, budget, device, dtype)
        found = measure(bench, bundle_folder(work, *run), missing)
        found["measured_on"] = {**before["measured_on"], **found["measured_on"]}
        measured_file(work, run).write_text(json.dumps({**before, **found}))
        if "speed" in missing:
            (work / "plain.json").write_text(json.dumps(round(bench.plain_tokens_per_second, 1)))
        say(f"{run[0].name}, seed {run[1]}: {told(found)}")
        yield run[0].name


def measured(work: Path, run: tuple[Variant, int]) -> dict[str, Any]:
    """What is measured of a run so far."""
    file = measured_file(work, run)
    return json.loads(file.read_text()) if file.exists() else {"measured_on": {}}


def told(found: dict[str, Any]) -> str:
    """What was found, but for the long lists."""
    return ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("lengths", "measured_on"))


@app.command()
def report(work: Work, output: Output = RESULTS, size: Size = "card") -> None:
    """Join the measurements in WORK into one file of results and print a table."""
    typer.echo(table(write_report(work, output, size)))


def write_report(work: Path, output: Path, size: str) -> dict[str, Any]:
    """Write what is measured so far to `output`, and return it."""
    found = results(work, size)
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def results(work: Path, size: str) -> dict[str, Any]:
    """Date, budget and the numbers of every run, with its change against the baseline of the same seed.

    Runs that began and have no numbers are named, so that nobody takes them for runs that were not asked for.
    """
    runs: dict[str, dict[str, Any]] = {}
    for file in sorted((work / "runs").glob("*/measured.json")):
        runs[file.parent.name] = json.loads(file.read_text())
    for name, run in runs.items():
        seed = name.rpartition("-")[2]
        against = runs.get(f"{BASELINE}-{seed}")
        if against is not None and against is not run and "lengths" in run and "lengths" in against:
            run["percent_against_gqa"] = change(run["lengths"], against["lengths"]).rounded(2)
    for run in runs.values():
        if "lengths" in run:
            run["prompts"], run["rounds"] = len(run["lengths"]), sum(map(len, run["lengths"]))
    shown = {name: {key: each for key, each in run.items() if key != "lengths"} for name, run in runs.items()}
    plain = work / "plain.json"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"draftc": __version__, **versions()},
        "budget": asdict(named(BUDGETS, "budget", size)),
        "plain_tokens_per_second": json.loads(plain.read_text()) if plain.exists() else None,
        "runs": shown,
        "not_measured": sorted(
            file.parent.name for file in (work / "runs").glob("*/log.txt") if file.parent.name not in runs
        ),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that matter here, as far as they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(found: dict[str, Any]) -> str:
    """The runs as a table in Markdown."""
    lines = [
        "| run | parameters | acceptance length | against gqa | draft step | tokens/s | against plain |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {' | '.join(cells(run))} |" for name, run in found["runs"].items()]
    if found["not_measured"]:
        lines += ["", f"Not measured: {', '.join(found['not_measured'])}."]
    return "\n".join(lines)


def cells(run: dict[str, Any]) -> Iterator[str]:
    """What the table says of a run, nothing where nothing was measured."""
    yield f"{run['parameters'] / 1e6:.1f} M" if "parameters" in run else ""
    yield "{:.2f} ({:.2f} to {:.2f})".format(*run["acceptance_length"]) if "acceptance_length" in run else ""
    yield "{:+.1f}% ({:+.1f} to {:+.1f})".format(*less) if (less := run.get("percent_against_gqa")) else ""
    has_speed = "draft_step_ms" in run
    yield f"{run['draft_step_ms']:.2f} ms" if has_speed else ""
    yield f"{run['tokens_per_second']:.0f}" if has_speed else ""
    yield f"{run['times_plain']:.2f}x" if has_speed else ""


@app.command(name="all")
def everything(
    work: Work,
    target: Path,
    gguf_file: str | None = None,
    device: Device = "cuda",
    size: Size = "card",
    variant: Names = None,
    seed: Seeds = None,
    parallel: Parallel = 1,
    seconds: Seconds = 86_400.0,
    output: Output = RESULTS,
) -> None:
    """Data, training, measurements, report."""
    data(work, target, gguf_file, device, size)
    runs(work, variant, seed, parallel, seconds, device, size)
    measurements(work, output, variant, seed, device=device, size=size)
    report(work, output, size)


def say(what: str) -> None:
    """Print a line of progress with the time."""
    typer.echo(f"{datetime.now(UTC):%H:%M:%S} {what}")


if __name__ == "__main__":
    app()
