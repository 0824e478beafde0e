"""Answers that `torch.compile` may take for constants."""

from collections.abc import Callable


def constant_to_compilers(function: Callable[[], bool]) -> Callable[[], bool]:
    """Mark `function`: `torch.compile` calls it once and keeps its answer in the graph, and does not trace into it.

    The mark is that of `torch.compiler.assume_constant_result`, which would load the whole compiler of torch, over a
    second, wherever a bundle is imported.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function
