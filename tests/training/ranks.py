"""What each of two ranks runs: steps of every family on a shared learner, and what it compares with one rank's."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from draftc.runtime.batch import Document, batch_of
from draftc.runtime.train.checkpoint import draft_state, optimizer_state
from draftc.runtime.train.learner import DraftLearner
from draftc.runtime.train.sharding import ShardedLearner, shard
from draftc.runtime.train.taps import Features
from tests.training.material import documents, features, learner, shape_of

RUNS = (
    ("dflash", "own"),
    ("dflash", "dpace"),
    ("dflash2", "own"),
    ("domino-shifted-prefix", "own"),
    ("domino", "lk-tv"),
    ("dspark-rnn", "own"),
    ("dspark-gated", "lk-lambda"),
)
STACK = ("context", "scan")
STEPS = 2
PROGRESS = 0.25


def micro_batches(trained: DraftLearner, rank: int, ranks: int) -> list[tuple[list[Document], Features]]:
    """The two accumulation steps of `rank`: with one rank, both hold the documents of all ranks."""
    given = documents(trained.draft)
    states = features(trained.draft, given)
    found = []
    for micro in range(2):
        own = [n for n in range(len(given)) if n % 2 == micro and (ranks == 1 or n // 2 == rank)]
        found.append(([given[n] for n in own], Features(states.taps[own], states.final[own])))
    return found


def whole(value: Tensor) -> Tensor:
    """`value` of all ranks."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def run(family: str, loss: str, spread: str, rank: int, ranks: int) -> dict[str, Tensor]:
    """Two AdamW steps of two accumulation steps each: the losses, the gradients of the first, the state after both."""
    trained = learner(family, *STACK, chunk_blocks=2, loss=loss)
    wrapped: nn.Module = trained
    if spread == "fsdp":
        wrapped = trained = shard(trained)
        assert isinstance(trained, ShardedLearner)
    elif spread == "ddp":
        wrapped = DistributedDataParallel(trained)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2, weight_decay=0.1)
    found: dict[str, Tensor] = {}
    for number in range(STEPS):
        parts = [
            (batch_of(given, shape_of(trained.draft)), states) for given, states in micro_batches(trained, rank, ranks)
        ]
        parts = [
            (batch, Features(cut(states.taps, batch.input_ids), cut(states.final, batch.input_ids)))
            for batch, states in parts
        ]
        totals = sum(trained.denominators(batch) for batch, _ in parts)
        if ranks > 1:
            dist.all_reduce(totals)
        losses = []
        for micro, (batch, states) in enumerate(parts):
            waits = micro == 0 and spread != "one"
            with wrapped.no_sync() if waits else torch.enable_grad():
                numerators, _ = wrapped(batch, states)
                loss = trained.objective.combine(numerators, totals, PROGRESS) * ranks
                loss.backward()
            losses.append(loss.detach() / ranks)
        total = torch.stack(losses).sum()
        if ranks > 1:
            dist.all_reduce(total)
        found[f"loss {number}"] = total
        if number == 0:
            for name, parameter in trained.named_parameters():
                if parameter.grad is not None:
                    found[f"grad {name}"] = whole(parameter.grad).clone()
        optimizer.step()
        optimizer.zero_grad()
    state = draft_state(wrapped)
    found.update({f"state {name}": tensor for name, tensor in state.items()})
    for name, values in optimizer_state(wrapped, optimizer).get("state", {}).items():
        found.update({f"moment {name} {kind}": value for kind, value in values.items() if isinstance(value, Tensor)})
    return found


def cut(states: Tensor, ids: Tensor) -> Tensor:
    """`states [D, S, W]` as long as the longest of `ids [D, S']`."""
    return states[:, : ids.shape[1]]


def difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference relative to the scale of its tensor, and where it is."""
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())
    return max(
        ((got[name] - want[name]).abs().max().item() / max(want[name].abs().max().item(), 1e-9), name) for name in want
    )


def main() -> None:
    """Run every family on one rank, then shared both ways; the first rank writes what differs."""
    rank, store, report = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    alone = [run(*each, "one", 0, 1) for each in RUNS]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    lines = []
    for (family, loss), wanted in zip(RUNS, alone, strict=True):
        for spread in ("fsdp", "ddp"):
            found = run(family, loss, spread, rank, 2)
            if rank == 0:
                worst, where = difference(found, wanted)
                lines.append(f"{family} {loss} {spread} {worst:.3e} {where}")
    if rank == 0:
        report.write_text("\n".join(lines), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
