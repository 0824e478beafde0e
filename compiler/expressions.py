"""One node of a graph as a Python expression, with the fewest brackets that keep its meaning."""

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from draftc.compiler.errors import InternalError
from draftc.compiler.pretty import quoted

ATOM, POWER, UNARY = 16, 15, 14
BINARY: Mapping[Callable[..., Any], tuple[str, int]] = {
    operator.mul: ("*", 13),
    operator.truediv: ("/", 13),
    operator.floordiv: ("//", 13),
    operator.mod: ("%", 13),
    operator.matmul: ("@", 13),
    operator.add: ("+", 12),
    operator.sub: ("-", 12),
    operator.and_: ("&", 10),
    operator.xor: ("^", 9),
    operator.or_: ("|", 8),
    operator.lt: ("<", 7),
    operator.le: ("<=", 7),
    operator.gt: (">", 7),
    operator.ge: (">=", 7),
    operator.eq: ("==", 7),
    operator.ne: ("!=", 7),
}
PREFIX: Mapping[Callable[..., Any], str] = {operator.neg: "-", operator.invert: "~"}
LONG_NUMBER = 8


@dataclass(frozen=True, slots=True)
class Expression:
    """Text of an expression and how tightly it binds."""

    text: str
    binding: int = ATOM

    def within(self, binding: int) -> str:
        """The text for a place that needs at least `binding`, bracketed when it binds less."""
        return self.text if self.binding >= binding else f"({self.text})"


Lookup = Callable[[fx.Node], Expression]


def expression(node: fx.Node, lookup: Lookup) -> Expression:
    """Return what computes `node`; `lookup` gives the expression or the name that stands for each input."""
    match node.op:
        case "get_attr":
            return Expression(f"self.{node.target}")
        case "call_module":
            return Expression(f"self.{node.target}({_arguments(node.args, node.kwargs, lookup)})")
        case "call_method":
            receiver = _value(node.args[0], lookup).within(ATOM)
            return Expression(f"{receiver}.{node.target}({_arguments(node.args[1:], node.kwargs, lookup)})")
        case "call_function" if callable(node.target):
            return _function(node.target, node, lookup)
        case _:
            raise InternalError(f"node {node.name} of kind {node.op} is no expression")


def arguments_text(values: Any, lookup: Lookup) -> Expression:
    """Return the expression of what a graph returns: a node, or a tuple of nodes."""
    return _value(values, lookup)


def _function(target: Callable[..., Any], node: fx.Node, lookup: Lookup) -> Expression:
    if target is operator.getitem:
        return Expression(f"{_value(node.args[0], lookup).within(ATOM)}[{_index(node.args[1], lookup)}]")
    if target is getattr:
        return Expression(f"{_value(node.args[0], lookup).within(ATOM)}.{node.args[1]}")
    if target in BINARY:
        return _binary(*BINARY[target], node, lookup)
    if target is operator.pow:
        left, right = _value(node.args[0], lookup).within(ATOM), _value(node.args[1], lookup).within(UNARY)
        star = "**" if _is_simple(left) and _is_simple(right) else " ** "
        return Expression(f"{left}{star}{right}", POWER)
    if target in PREFIX:
        inner = _value(node.args[0], lookup)
        return Expression(PREFIX[target] + inner.within(ATOM if inner.binding == POWER else UNARY), UNARY)
    kwargs = {key: value for key, value in node.kwargs.items() if not _is_default(target, key, value)}
    return Expression(f"{function_name(target)}({_arguments(node.args, kwargs, lookup)})")


def _binary(sign: str, binding: int, node: fx.Node, lookup: Lookup) -> Expression:
    left, right = (_value(part, lookup) for part in node.args)
    return Expression(f"{left.within(binding)} {sign} {right.within(binding + 1)}", binding)


def function_name(target: Callable[..., Any]) -> str:
    """Return the name that a file with `import torch` and `torch.nn.functional as F` calls `target` by."""
    name = target.__name__
    if getattr(F, name, None) is target:
        return f"F.{name}"
    return f"torch.{name}" if getattr(torch, name, None) is target else name


@cache
def _defaults(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Defaults of a Python function of torch: torch.nn.functional records every one of them in a graph."""
    if not function_name(target).startswith("F."):
        return {}
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin without a signature records what its caller wrote
        return {}
    return {name: found.default for name, found in parameters.items() if found.default is not inspect.Parameter.empty}


def _is_default(target: Callable[..., Any], key: str, value: Any) -> bool:
    default = _defaults(target).get(key, inspect.Parameter.empty)
    return type(default) is type(value) and default == value


def _arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], lookup: Lookup) -> str:
    positional = [_value(part, lookup).text for part in args]
    named = [f"{key}={_named_value(key, part, lookup).text}" for key, part in kwargs.items()]
    return ", ".join([*positional, *named])


def _named_value(key: str, value: Any, lookup: Lookup) -> Expression:
    return _number(value, is_scale=key == "scale") if type(value) is float else _value(value, lookup)


def _value(value: Any, lookup: Lookup) -> Expression:
    match value:
        case fx.Node():
            return lookup(value)
        case bool() | None:
            return Expression(repr(value))
        case float() | int():
            return _number(value)
        case str():
            return Expression(quoted(value))
        case list():
            return Expression(f"[{', '.join(_value(part, lookup).text for part in value)}]")
        case tuple():
            inner = ", ".join(_value(part, lookup).text for part in value)
            return Expression(f"({inner},)" if len(value) == 1 else f"({inner})")
        case torch.dtype():
            return Expression(str(value))
        case _ if value is Ellipsis:
            return Expression("...")
        case _:
            raise InternalError(f"a graph holds a {type(value).__name__}, which has no text")


def _number(value: float, *, is_scale: bool = False) -> Expression:
    """A number as its author would write it: `128**-0.5` where that is exactly the value."""
    if isinstance(value, float) and (is_scale or len(repr(value)) > LONG_NUMBER) and 0 < value < 1:
        width = round(value**-2)
        if width**-0.5 == value:
            return Expression(f"{width}**-0.5", POWER)
    return Expression(repr(value), ATOM if value >= 0 else UNARY)


def _index(index: Any, lookup: Lookup) -> str:
    if isinstance(index, tuple):
        return ", ".join(_index(part, lookup) for part in index)
    if not isinstance(index, slice):
        return _value(index, lookup).text
    bounds = ["" if part is None else _value(part, lookup).text for part in (index.start, index.stop)]
    step = "" if index.step is None else f":{_value(index.step, lookup).text}"
    is_plain = all(_is_simple(part) for part in bounds)
    return (":" if is_plain else " : ").join(bounds).strip() + step


def _is_simple(text: str) -> bool:
    """Whether ruff writes a power or a slice of this part without spaces: names, attributes, numbers, their minus."""
    return text.removeprefix("-").replace(".", "").replace("_", "").isalnum() or not text
