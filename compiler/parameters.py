"""Names and shapes of the tensors of a draft, known without building one. They are those of the public families."""

from collections.abc import Iterator
from math import prod

from draftc.compiler.families import family_form
from draftc.compiler.program import Program

BUFFERS = ("d2t", "t2d")


def tensor_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the state dict, by name, in the order of the model's state dict."""
    return dict(_tensors(program))


def parameter_count(program: Program) -> int:
    """Return how many trainable numbers the draft has."""
    return sum(prod(shape) for name, shape in _tensors(program) if name not in BUFFERS)


def layer_parameter_count(program: Program, layer: int) -> int:
    """Return how many trainable numbers one layer has."""
    return sum(parameter.numel() for parameter in program.unit(program.stack[layer]).module.parameters())


def _tensors(program: Program) -> Iterator[tuple[str, tuple[int, ...]]]:
    layout = program.layout
    width, target = layout.hidden_size, layout.target.hidden_size
    if layout.owns_head:
        yield "d2t", (layout.draft_vocab_size,)
        yield "t2d", (layout.target.vocab_size,)
    if width != target:
        yield "input_proj.weight", (width, target)
    yield "fc.weight", (width, layout.context_width)
    yield "hidden_norm.weight", (width,)
    for number, name in enumerate(program.stack):
        for key, parameter in program.unit(name).module.named_parameters():
            yield f"layers.{number}.{key}", tuple(parameter.shape)
    yield "norm.weight", (width,)
    if width != target and not layout.owns_head:
        yield "output_proj.weight", (target, width)
    if layout.owns_head:
        yield "lm_head.weight", (layout.draft_vocab_size, width)
    yield from family_form(layout).tensors.items()
