"""Training steps on a CUDA card: do backends agree, how long is a step: `python bench/gpu_step.py [folder [section]]`.

The step is that of the public comparison: 5 layers of Qwen3-4B size, 4,096 context rows, 512 blocks of 16 slots, batch
1, bf16, forward and backward. The peer is z-lab's own model (package dflash 0.1.0) with our weights, on the attention
that it hard-wires: sdpa under a dense mask. Agreement is shown on short blocks, one layer of each class of each layout,
against eager.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from clock import call_ms, peak_gib
from record import Section, run_sections

import draftc
from draftc import bundles
from draftc.compiler import probe
from draftc.compiler.api import CompiledDraft
from draftc.compiler.naming import names_of
from draftc.compiler.verify import compared, first_of_each

LAYOUTS = (
    "smollm2-135m-dflash",
    "qwen3-4b-dflash",
    "qwen3-8b-dflash",
    "qwen3.6-27b-dflash",
    "qwen2.5-0.5b-dflash",
    "gpt-oss-20b-dflash",
)
CONTEXT, BLOCKS = 4096, 512
BF16, FP32 = 5e-2, 1e-4  # of scale: sums in another order, and through bf16 rounding of every value on the way


def timed(step: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds and the peak of memory above what lay there before, in GiB."""
    return {"ms": call_ms(step, 7), "peak_gib": peak_gib(step)}


class Workload:
    """Inputs of the step: `noise [1, 8192, H]`, `context [1, 4096, T·W]`, `anchors [1, 512]`."""

    def __init__(self, config: Any) -> None:
        make = {"device": "cuda", "dtype": torch.bfloat16}
        torch.manual_seed(0)
        self.noise = torch.randn(1, BLOCKS * config.block_size, config.target_hidden_size, **make)
        self.context = torch.randn(1, CONTEXT, config.context_width, **make)
        self.anchors = torch.randperm(CONTEXT - 1, device="cuda")[:BLOCKS].sort().values[None]

    def ours(self, model: Any) -> None:
        """Forward and backward of a compiled draft."""
        model.zero_grad(set_to_none=True)
        out = model(noise_embeds=self.noise, context_hidden_states=self.context, anchors=self.anchors)
        out.last_hidden_state.float().pow(2).mean().backward()

    def forward(self, model: Any) -> None:
        """Forward of a compiled draft without gradients."""
        with torch.no_grad():
            model(noise_embeds=self.noise, context_hidden_states=self.context, anchors=self.anchors)

    def theirs(self, model: Any, size: int) -> None:
        """Forward and backward of the peer, its dense mask and positions made outside the clock."""
        model.zero_grad(set_to_none=True)
        mask, positions = self.dense(size)
        out = model(position_ids=positions, attention_mask=mask, noise_embedding=self.noise, target_hidden=self.context)
        out.float().pow(2).mean().backward()

    def dense(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The peer's mask `[1, 1, Q, C+Q]` and positions `[1, C+Q]`, made once."""
        if not hasattr(self, "_dense"):
            slots = self.anchors.repeat_interleave(size, 1)
            block = torch.arange(BLOCKS, device="cuda").repeat_interleave(size)
            rows = torch.arange(CONTEXT, device="cuda")
            seen = torch.cat([rows < slots[0][:, None], block[:, None] == block], dim=1)
            positions = torch.cat([rows, slots[0] + torch.arange(size, device="cuda").repeat(BLOCKS)])[None]
            self._dense = seen[None, None], positions
        return self._dense


def peer(config: Any, state: dict[str, torch.Tensor]) -> Any:
    """Return z-lab's model with the weights of ours."""
    from dflash.model import DFlashDraftModel
    from transformers import Qwen3Config

    theirs = Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=9728,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        num_target_layers=36,
        dflash_config={
            "target_layer_ids": config.target_layer_ids,
            "block_size": config.block_size,
            "mask_token_id": config.mask_token_id,
        },
    )
    model = DFlashDraftModel(theirs).to("cuda", torch.bfloat16)
    model.load_state_dict(state)
    return model


def step_times() -> Section:
    """Time the step of qwen3-4b-dflash: ours as it is, the peer, ours with compiled layers."""
    model = draftc.compile("qwen3-4b-dflash").model("cuda").train()
    work = Workload(model.config)
    yield "flex", lambda: timed(lambda: work.ours(model))
    yield "flex, forward", lambda: call_ms(lambda: work.forward(model), 7)
    yield "z-lab dflash 0.1.0, sdpa", lambda: peer_times(work, model)
    yield "flex, layers compiled, no graph break", lambda: compiled_times(work, model)


def compiled_times(work: Workload, model: Any) -> dict[str, float]:
    """Time our step with every layer compiled without a graph break."""
    for layer in model.layers:
        layer.compile(fullgraph=True)
    return timed(lambda: work.ours(model))


def peer_times(work: Workload, model: Any) -> dict[str, float]:
    """Time the peer with the weights of `model`."""
    theirs, size = peer(model.config, model.state_dict()).train(), model.config.block_size
    return timed(lambda: work.theirs(theirs, size))


def reduced(draft: CompiledDraft, dtype: torch.dtype, backend: str) -> Any:
    """Return the emitted model with one layer of each class, forced onto `backend`."""
    names = names_of(draft.layout.name)
    module = bundles.install(names.identifier, draft.files)
    whole = getattr(module, names.model_class)
    config = draft.model("meta").config
    os.environ["DRAFTC_BACKEND"] = backend
    try:
        with torch.device("cuda"):
            return probe.shortened(whole, config, first_of_each(draft.layout), dtype)
    finally:
        del os.environ["DRAFTC_BACKEND"]


def agreement(name: str, runs: tuple[tuple[str, torch.dtype], ...], plain: str) -> dict[str, Any]:
    """Return the largest difference of each run to `plain` in the same dtype, of outputs and of gradients, by run.

    Tokens are no numbers: two scores that rounding makes equal may swap them.
    """
    draft, dtypes = draftc.compile(name), {dtype for _, dtype in runs}
    expected = {dtype: probe.measure(reduced(draft, dtype, plain), dtype, "cuda", True) for dtype in dtypes}
    found = {}
    for backend, dtype in runs:
        values = probe.measure(reduced(draft, dtype, backend), dtype, "cuda", with_gradients=True)
        numbers = [each for each in compared(expected[dtype], values) if each.what != "drafted tokens"]
        worst = max(numbers, key=lambda difference: difference.relative)
        limit = FP32 if dtype is torch.float32 else BF16
        word = "agrees" if worst.relative <= limit else "DIFFERS"
        found[f"{backend} {str(dtype).removeprefix('torch.')}"] = f"{word}: {worst.relative:.1e} ({worst.what})"
    torch.cuda.empty_cache()
    return found


def agreements() -> Section:
    """Compare sdpa and flex with eager for every layout of GQA and MHA."""
    for name in LAYOUTS:
        yield name, partial(agreement, name, runs_of("sdpa", "flex"), "eager")


def runs_of(*backends: str) -> tuple[tuple[str, torch.dtype], ...]:
    """Each of `backends` in float32 and in bfloat16."""
    return tuple((backend, dtype) for backend in backends for dtype in (torch.float32, torch.bfloat16))


def workload() -> Section:
    """What the numbers were measured on."""
    yield "context", lambda: CONTEXT
    yield "blocks", lambda: BLOCKS
    yield "tolerance_of_scale", lambda: [FP32, BF16]


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    run_sections("gpu_step", {"workload": workload, "step": step_times, "agreement": agreements})
