"""Flex attention alone on a CUDA card, on the training workload: `python bench/flex.py [folder]`.

512 blocks of 16 slots against 4,096 rows of context, bf16, for the head shapes of a GQA and an MLA layer, with anchors
in random order and sorted. Sorted anchors let whole tiles be skipped, which is why training batches sort them.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from clock import call_ms
from record import RESULTS, card, write

from draftc.runtime.attend import attend
from draftc.runtime.visibility import View, Visibility

CONTEXT, BLOCKS, SIZE = 4096, 512, 16
SHAPES = {"gqa 32/8 x 128": (32, 8, 128, 128), "mla 32 x 192/128": (32, 32, 192, 128)}


def heads(rows: int, count: int, width: int) -> torch.Tensor:
    """Random `[1, count, rows, width]` laid out as a projection leaves it."""
    made = torch.randn(1, rows, count, width, device="cuda", dtype=torch.bfloat16)
    return made.transpose(1, 2).requires_grad_()


def times(view: View, shape: tuple[int, int, int, int]) -> dict[str, float]:
    """Forward, and forward with backward, of one attention."""
    query_heads, key_heads, width, value_width = shape
    queries = BLOCKS * SIZE
    q, k = heads(queries, query_heads, width), heads(CONTEXT + queries, key_heads, width)
    v = heads(CONTEXT + queries, key_heads, value_width)
    gradient = torch.randn(1, query_heads, queries, value_width, device="cuda", dtype=torch.bfloat16)

    def forward() -> None:
        with torch.no_grad():
            attend(q, k, v, view, scale=width**-0.5)

    def both() -> None:
        torch.autograd.grad(attend(q, k, v, view, scale=width**-0.5), (q, k, v), gradient)

    return {"forward_ms": call_ms(forward), "forward_backward_ms": call_ms(both)}


def main() -> None:
    """Measure, print, write."""
    torch.manual_seed(0)
    context = torch.arange(CONTEXT, device="cuda")[None]
    results: dict[str, Any] = {"workload": {"context": CONTEXT, "blocks": BLOCKS, "slots": SIZE}}
    anchors = torch.randint(0, CONTEXT - SIZE, (1, BLOCKS), device="cuda")
    for order, placed in (("random", anchors), ("sorted", anchors.sort(-1).values)):
        view = Visibility(placed, context, SIZE).view(None, False, CONTEXT, "flex")
        results[order] = {name: times(view, shape) for name, shape in SHAPES.items()}
        print(order, results[order], flush=True)
    print(write("flex", results, Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS, card=card()))


if __name__ == "__main__":
    main()
