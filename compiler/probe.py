"""The experiment of `verify`: fixed weights and inputs through a draft, both phases, by torch and transformers alone.

It runs twice, on the bundle in a process that has no draftc and on the reference modules in this one, and draws the
same numbers both times, so that only results travel. As a script: `python probe.py REQUEST.json RESULT.safetensors`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

CONTEXT = 24
ROUNDS = (7, 3)  # context rows that come with the first and the second decoding step
SAMPLE = 65_536  # gradient entries compared per parameter, evenly spaced
TABLE, RANK = 64, 8  # rows of the stand-in for the target's embedding, inner width of that for its output head


def fill(model: nn.Module, seed: int) -> None:
    """Give every parameter of `model` reproducible values of a size that keeps activations near 1."""
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        generator = torch.Generator(device=parameter.device).manual_seed(seed + number)
        spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.1
        centre = 1.0 if parameter.ndim == 1 and name.endswith("norm.weight") else 0.0
        with torch.no_grad():
            parameter.uniform_(-spread, spread, generator=generator).add_(centre)


def drawn(shape: tuple[int, ...], like: Tensor, seed: int) -> Tensor:
    """Reproducible normal numbers with the dtype and device of `like`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(like)


def training_step(model: Any, like: Tensor, with_gradients: bool) -> dict[str, Tensor]:
    """Run three blocks, one of them dropped; return the output and, if asked for, the gradients.

    Gradients are those of inputs `[1, Q, H]` and `[1, C, T·W]`, whole, and of parameters, SAMPLE entries of each.
    """
    config = model.config
    noise = drawn((1, 3 * config.block_size, config.target_hidden_size), like, 1).requires_grad_(with_gradients)
    context = drawn((1, CONTEXT, config.context_width), like, 2).requires_grad_(with_gradients)
    anchors = torch.tensor([[5, CONTEXT - 2, -1]], device=like.device)
    with torch.set_grad_enabled(with_gradients):
        out = model(noise_embeds=noise, context_hidden_states=context, anchors=anchors).last_hidden_state
    found = {"training output": out.detach()}
    if with_gradients:
        out.backward(drawn(tuple(out.shape), like, 3))
        found |= {"gradient of noise_embeds": noise.grad, "gradient of context_hidden_states": context.grad}
        found |= {f"gradient of {name}": sampled(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return found


def sampled(gradient: Tensor) -> Tensor:
    """Return SAMPLE entries of `gradient`, evenly spaced, or all of a small one."""
    flat = gradient.flatten()
    return flat[:: max(1, flat.numel() // SAMPLE)].clone()


@torch.no_grad()
def decoding_steps(model: Any, like: Tensor) -> dict[str, Tensor]:
    """Decode one block after the first rows and one after a few more, as a decoding loop does; return the outputs."""
    config = model.config
    cache, found = DynamicCache(config=config), {}
    for number, rows in enumerate(ROUNDS):
        if number:
            cache.crop(-config.block_size)
        noise = drawn((1, config.block_size, config.target_hidden_size), like, 10 + number)
        context = drawn((1, rows, config.context_width), like, 20 + number)
        step = model(noise_embeds=noise, context_hidden_states=context, cache=cache)
        found[f"decoding output {number + 1}"] = step.last_hidden_state
    return found


class SmallTable(nn.Module):
    """An embedding of any vocabulary that keeps few rows: tokens whose numbers agree up to `TABLE` share one."""

    def __init__(self, width: int, like: Tensor) -> None:
        super().__init__()
        self.rows: Tensor = drawn((TABLE, width), like, 30)

    def forward(self, tokens: Tensor) -> Tensor:
        """`[..] -> [.., width]`."""
        return self.rows[tokens % TABLE]


class SmallHead(nn.Module):
    """An output head over any vocabulary that keeps two thin matrices."""

    def __init__(self, width: int, vocabulary: int, like: Tensor) -> None:
        super().__init__()
        self.down: Tensor = drawn((width, RANK), like, 31) * width**-0.5
        self.up: Tensor = drawn((RANK, vocabulary), like, 32)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[.., width] -> [.., vocabulary]`."""
        return hidden @ self.down @ self.up


def head_steps(model: Any, like: Tensor, with_gradients: bool) -> dict[str, Tensor]:
    """Run the heads on drawn hidden states, so that no difference of the layers decides which candidates they take.

    Both forms: scores of two blocks with tokens given, with the gradients of `hidden [1, 2b, H]` and of parameters; and
    a block that is drafted greedily.
    """
    config, slots = model.config, model.slots
    embed = SmallTable(config.target_hidden_size, like)
    lm_head = None if model.owns_head else SmallHead(config.target_hidden_size, config.vocab_size, like)
    hidden = drawn((1, 2 * slots.size, config.hidden_size), like, 33).requires_grad_(with_gradients)
    previous = (torch.arange(2 * slots.steps, device=like.device) * 7919 % config.vocab_size).view(1, 2, -1)
    with torch.set_grad_enabled(with_gradients):
        scored = model.block_scores(hidden, previous, lm_head, embed)
    values = {
        name: value for name, value in scored._asdict().items() if value is not None and value.is_floating_point()
    }
    found = {f"{name} of heads": sampled(value.detach()) for name, value in values.items()}
    if with_gradients:
        model.zero_grad()
        weights = [drawn(tuple(value.shape), like, 40 + number) for number, value in enumerate(values.values())]
        sum((value * weight).mean() for value, weight in zip(values.values(), weights, strict=True)).backward()
        named = {name: p.grad for name, p in (("hidden", hidden), *model.named_parameters()) if p.grad is not None}
        found |= {f"gradient of {name} through heads": sampled(grad) for name, grad in named.items()}
    with torch.no_grad():
        block = hidden[:, : slots.size]
        drafted = model.draft_tokens(block, previous[:, 0, 0], lm_head, embed)
    return found | {"scores of a drafted block": sampled(drafted.scores), "drafted tokens": drafted.tokens.to(like)}


def measure(model: Any, dtype: torch.dtype, device: str, with_gradients: bool) -> dict[str, Tensor]:
    """Fill `model`, run both phases and the heads, return everything on the CPU."""
    fill(model, seed=17)
    model = model.to(device)
    like = torch.empty(0, dtype=dtype, device=device)
    found = training_step(model.train(), like, with_gradients) | decoding_steps(model.eval(), like)
    found |= head_steps(model, like, with_gradients)
    return {name: value.detach().cpu().contiguous() for name, value in found.items()}


def bundle_model(folder: str, layers: list[int], dtype: torch.dtype) -> Any:
    """Instantiate the model of the bundle in `folder` with `layers` of its stack only."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    whole = get_class_from_dynamic_module(config.auto_map["AutoModel"], folder)
    return shortened(whole, config, layers, dtype)


def shortened(whole: Any, config: Any, layers: list[int], dtype: torch.dtype) -> Any:
    """Instantiate `whole` with only the `layers` of its stack, weights of `dtype` (fp32 parts stay fp32)."""
    facts = {
        "layer_classes": tuple(whole.layer_classes[i] for i in layers),
        "backends": {key: tuple(names[i] for i in layers) for key, names in whole.backends.items()},
    }
    config.num_hidden_layers = len(layers)
    config.layer_types = [config.layer_types[i] for i in layers]
    model = type(whole.__name__, (whole,), facts)(config)
    kept = {
        name for name, _ in model.named_parameters() if name.rpartition(".")[2] in whole._keep_in_fp32_modules_strict
    }
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.promote_types(dtype, torch.float32) if name in kept else dtype)
    return model


def main() -> None:
    """Read the request, run the bundle, write the results."""
    from safetensors.torch import save_file

    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if request["backend"]:
        os.environ["DRAFTC_BACKEND"] = request["backend"]
    dtype = getattr(torch, request["dtype"])
    model = bundle_model(request["folder"], request["layers"], dtype)
    save_file(measure(model, dtype, request["device"], request["gradients"]), sys.argv[2])


if __name__ == "__main__":
    main()
