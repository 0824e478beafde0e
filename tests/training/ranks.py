"""What each of two ranks runs: steps of every family on a shared learner, and what it compares with one rank's.

`python -m tests.training.ranks RANK STORE REPORT [cpu|cuda]`, once per rank: gloo on the host, NCCL with a card each.
"""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from draftc.runtime.batch import DraftBatch, batch_of
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
NARROW = ("dspark-rnn", "own")
STACK = ("context", "scan")
STEPS = 2
PROGRESS = 0.25


@dataclass(frozen=True)
class Place:
    """One rank of `ranks`, how the learner is spread over them, its card, and whether it computes in bfloat16."""

    rank: int
    ranks: int
    spread: str
    device: str
    narrow: bool = False


def micro_batches(trained: DraftLearner, place: Place) -> list[tuple[DraftBatch, Features]]:
    """The two accumulation steps of a rank: with one rank, both hold the documents of all ranks."""
    given = documents(trained.draft)
    states = features(trained.draft, given)
    found = []
    for micro in range(2):
        own = [n for n in range(len(given)) if n % 2 == micro and (place.ranks == 1 or n // 2 == place.rank)]
        batch = batch_of([given[n] for n in own], shape_of(trained.draft))
        length = batch.input_ids.shape[1]
        cut = Features(states.taps[own, :length], states.final[own, :length])
        found.append((batch.to(place.device), cut.to(place.device)))
    return found


def spread_out(family: str, loss: str, place: Place) -> tuple[DraftLearner, nn.Module]:
    """The learner, and what is called: the two are one unless DDP is around it."""
    trained = learner(family, *STACK, chunk_blocks=2, loss=loss)
    narrow = torch.bfloat16 if place.narrow else None
    if place.narrow:
        tables = trained.vocabulary.to("cpu", torch.bfloat16)
        trained = DraftLearner(trained.draft.float(), tables, trained.objective, 2, narrow).train()
    trained.vocabulary = trained.vocabulary.to(place.device, trained.vocabulary.embed.weight.dtype)
    trained.to(place.device)
    if place.spread == "fsdp":
        trained = shard(trained, narrow)
        assert isinstance(trained, ShardedLearner)
    wrapped = DistributedDataParallel(trained) if place.spread == "ddp" else trained
    return trained, wrapped


def whole(value: Tensor) -> Tensor:
    """`value` of all ranks, on the host."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()


def all_summed(value: Tensor, place: Place) -> Tensor:
    """The sum over all ranks."""
    if place.ranks > 1:
        dist.all_reduce(value)
    return value


def one_step(trained: DraftLearner, wrapped: nn.Module, place: Place) -> Tensor:
    """Gradients of two accumulation steps; returns the loss of all ranks."""
    parts = micro_batches(trained, place)
    totals = all_summed(sum(trained.denominators(batch) for batch, _ in parts), place)
    losses = []
    for micro, (batch, states) in enumerate(parts):
        with wrapped.no_sync() if micro == 0 and place.spread != "one" else nullcontext():
            numerators, _ = wrapped(batch, states)
            loss = trained.objective.combine(numerators, totals, PROGRESS) * place.ranks
            loss.backward()
        losses.append(loss.detach() / place.ranks)
    return all_summed(torch.stack(losses).sum(), place)


def run(family: str, loss: str, place: Place) -> dict[str, Tensor]:
    """Two AdamW steps: their losses, the gradients of the first, weights and moments after both."""
    trained, wrapped = spread_out(family, loss, place)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2, weight_decay=0.1)
    found: dict[str, Tensor] = {}
    for number in range(STEPS):
        found[f"loss {number}"] = whole(one_step(trained, wrapped, place))
        gradients = {name: p.grad for name, p in trained.named_parameters() if p.grad is not None}
        found.update({f"grad {number} {name}": whole(gradient) for name, gradient in gradients.items()})
        optimizer.step()
        optimizer.zero_grad()
    found.update({f"state {name}": tensor.cpu() for name, tensor in draft_state(wrapped).items()})
    for name, values in optimizer_state(wrapped, optimizer).get("state", {}).items():
        found.update({f"moment {name} {kind}": value for kind, value in values.items() if isinstance(value, Tensor)})
    return found


def difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference relative to the scale of its tensor, and where it is."""
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())
    return max(
        ((got[name] - want[name]).abs().max().item() / max(want[name].abs().max().item(), 1e-9), name) for name in want
    )


def compared(family: str, loss: str, spread: str, rank: int, device: str, narrow: bool) -> str:
    """One line: the run, and how far two ranks are from one; in bfloat16 the first loss and its gradients only."""
    want = run(family, loss, Place(0, 1, "one", device, narrow))
    got = run(family, loss, Place(rank, 2, spread, device, narrow))
    if narrow:
        want, got = ({n: v for n, v in each.items() if n == "loss 0" or n.startswith("grad 0")} for each in (want, got))
    if rank:
        return ""
    worst, where = difference(got, want)
    return f"{family} {loss} {spread}{'-bf16' if narrow else ''} {worst:.3e} {where}"


def main() -> None:
    """Run every family on one rank and on both; the first rank writes what differs."""
    rank, store, report = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    kind = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    torch.set_num_threads(1)
    device = "cpu" if kind == "cpu" else f"cuda:{rank}"
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if kind == "cpu" else "nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    lines = [compared(*each, spread, rank, device, False) for each in RUNS for spread in ("fsdp", "ddp")]
    lines += [compared(*NARROW, spread, rank, device, True) for spread in ("fsdp", "ddp")]
    if rank == 0:
        report.write_text("\n".join(lines), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
