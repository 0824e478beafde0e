"""Traced graphs know their author's statements, and what cannot be traced is refused at its line with a way out."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from draftc.compiler.errors import UntraceableError
from draftc.compiler.program import assemble
from draftc.compiler.trace import trace
from draftc.runtime.attend import attend
from draftc.runtime.mlp import GatedMLP
from tests.compiler.support import ATTENTIONS, layout


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 1:
            x = x + 1
        return x


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1]):
            x = x + 1
        return x


class Measuring(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * len(x)


class Rounding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * int(x.shape[0])


class Looping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row + 1 for row in x])


class Optional(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x = x + mask
        return x


class Asserting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 3
        return x


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.missing


REFUSED = {
    Branching: ("if x.shape[1] > 1:", "branches on", "torch.where"),
    Counting: ("for _ in range(x.shape[1]):", "as a Python number", "-1 in reshape"),
    Measuring: ("return x * len(x)", "as a Python number", "constructor"),
    Rounding: ("return x * int(x.shape[0])", "as a Python number", "constructor"),
    Looping: ("return torch.stack([row + 1 for row in x])", "loops over x", "unpack"),
    Optional: ("if mask is not None:", "asks whether mask is None", "required"),
    Asserting: ("assert x.shape[-1] == 3", "branches on", "torch.where"),
    Failing: ("return x + self.missing", "no attribute 'missing'", "straight-line"),
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_refusal_names_module_line_and_way_out(kind: type[nn.Module]) -> None:
    statement, reason, way_out = REFUSED[kind]
    with pytest.raises(UntraceableError) as caught:
        trace(kind(), "layers.3.self_attn")
    lines, first = inspect.getsourcelines(kind)
    line = first + next(number for number, text in enumerate(lines) if text.strip().startswith(statement))
    assert "layers.3.self_attn" in caught.value.message
    assert reason in caught.value.message
    assert way_out in caught.value.help
    assert caught.value.notes == (f"{__file__}:{line}", f"`{statement}`")


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = 4**-0.5

    def forward(self, x: Tensor, view: object) -> Tensor:
        a, b = x.split(
            (2, 2),
            dim=-1,
        )
        c: Tensor = a * self.scale
        out = attend(a, b, c, view, scale=self.scale)
        return self.inner(out)


def test_nodes_carry_the_statement_and_the_names_it_assigns() -> None:
    traced = trace(Wrapped())
    first = inspect.getsourcelines(Wrapped.forward)[1]
    found = {
        node.name: (node.meta["statement"] - first, node.meta["roles"]) for node in traced.graph.nodes if node.meta
    }
    assert found == {
        "x": (0, ("x",)),
        "view": (0, ("view",)),
        "split": (1, ("a", "b")),
        "getitem": (1, ("a", "b")),
        "getitem_1": (1, ("a", "b")),
        "mul": (5, ("c",)),
        "attend": (6, ("out",)),
        "inner": (7, ()),
    }
    assert traced.source.at(first + 2).text == "a, b = x.split( (2, 2), dim=-1, )"


def test_operations_of_runtime_and_children_stay_whole_and_constants_fold() -> None:
    graph = trace(Wrapped()).graph
    attention = next(node for node in graph.nodes if node.target is attend)
    assert attention.kwargs == {"scale": 0.5}
    assert [node.target for node in graph.nodes if node.op == "call_module"] == ["inner"]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_rules_for_reference_forwards_hold(name: str) -> None:
    """Operations of ours are called by bare name, and no node is made outside a statement of the forward."""
    for unit in assemble(layout(name)).units:
        for node in unit.graph.nodes:
            assert node.op == "output" or set(node.meta) == {"statement", "roles"}
            target = node.target
            is_ours = callable(target) and getattr(target, "__module__", "").startswith("draftc.")
            assert not is_ours or target.__name__ in type(unit.module).forward.__globals__


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_graph_computes_what_its_forward_does(act: str) -> None:
    module = GatedMLP(24, 40, act).double()
    x = torch.randn(2, 3, 24, dtype=torch.float64)
    assert torch.equal(torch.fx.GraphModule(module, trace(module).graph)(x), module(x))
