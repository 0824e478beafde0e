"""The walk over a graph that gives every node its sizes and dtype."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from draftc.compiler.errors import InternalError, ShapeError
from draftc.compiler.program import Unit
from draftc.compiler.shapes.our_ops import MEMORY_METHODS, MODULES, OPERATIONS
from draftc.compiler.shapes.torch_ops import FUNCTIONS, METHODS, Rule
from draftc.compiler.shapes.values import MisfitError, Opaque, TensorValue, Value, dims_of, dtypes_of

FP32_PARAMETERS = ("A_log", "dt_bias")


Note = Callable[[Unit, fx.Node, Value], None]


def write(_: Unit, node: fx.Node, value: Value) -> None:
    """Write the sizes and the dtype of `value` on its node."""
    node.meta.update(dims=dims_of(value), dtype=dtypes_of(value))


def no_form(_: str) -> Unit | None:
    """Return None: the unit of that name has no decoding form."""
    return None


class Inference:
    """Walks units of one program and tells `note` the value of every node.

    `dtype` is the storage of parameters, `units` finds the unit of a part, `forms` the decoding form of a unit.
    """

    def __init__(
        self,
        dtype: str,
        units: Callable[[str], Unit],
        note: Note = write,
        forms: Callable[[str], Unit | None] = no_form,
    ) -> None:
        self._dtype = dtype
        self._units = units
        self._forms = forms
        self._note = note

    def unit(self, unit: Unit, inputs: tuple[Value, ...]) -> Value:
        """Infer every node of `unit`, called with `inputs` in order; return its result.

        Raises `ShapeError` at the first node whose operands do not fit, `InternalError` where there is no rule.
        """
        values: dict[fx.Node, Value] = {}
        given = iter(inputs)
        for node in unit.graph.nodes:
            value = next(given) if node.op == "placeholder" else self._value(unit, node, values)
            values[node] = value
            self._note(unit, node, value)
        return value

    def _value(self, unit: Unit, node: fx.Node, values: Mapping[fx.Node, Value]) -> Value:
        args, kwargs = _replaced((node.args, node.kwargs), values)
        try:
            return self._apply(unit, node, args, kwargs)
        except MisfitError as error:
            raise _misfit(unit, node, str(error)) from None

    def _apply(self, unit: Unit, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        if node.op == "output":
            result: Value = args[0]
            return result
        if node.op == "get_attr":
            return self._parameter(unit, str(node.target))
        if node.op == "call_module":
            return self._module(unit, str(node.target), args, kwargs)
        if node.op == "call_method":
            return _method(unit, node, args, kwargs)
        return _function(unit, node, args, kwargs)

    def _parameter(self, unit: Unit, target: str) -> TensorValue:
        tensor = operator.attrgetter(target)(unit.module)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_floating_point():
            dtype = "float32" if target.split(".")[-1] in FP32_PARAMETERS else self._dtype
        return TensorValue((), dtype).with_shape(*tensor.shape)

    def _module(self, unit: Unit, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        if target in unit.parts:
            return self._part(unit.parts[target], args)
        module = unit.module.get_submodule(target)
        rule = _rule(MODULES, type(module).__name__, unit)
        return _called(rule, (module, *args), kwargs, type(module).__name__)

    def _part(self, name: str, args: tuple[Any, ...]) -> Value:
        value, form = self.unit(self._units(name), args), self._forms(name)
        if form is not None and self.unit(form, args) != value:
            raise InternalError(f"{form.name} does not return what {name} returns", help="report this layout")
        return value


def _replaced(arguments: Any, values: Mapping[fx.Node, Value]) -> Any:
    """Arguments with values in place of nodes; torch types the result of its mapping as arguments of a node."""
    lookup: Any = values.__getitem__
    return fx.map_arg(arguments, lookup)


def _method(unit: Unit, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    rules = MEMORY_METHODS if isinstance(args[0], Opaque) else METHODS
    return _called(_rule(rules, str(node.target), unit), args, kwargs, str(node.target))


def _function(unit: Unit, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    target: Any = node.target
    name = getattr(target, "__name__", str(target))
    rule = FUNCTIONS.get(target)
    return _called(rule or _rule(OPERATIONS, name, unit), args, kwargs, name)


def _rule(rules: Mapping[str, Rule], name: str, unit: Unit) -> Rule:
    if name not in rules:
        raise InternalError(f"no shape rule for {name}, which {unit.name} calls", help="report this layout")
    return rules[name]


def _called(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Value:
    try:
        return rule(*args, **kwargs)
    except (TypeError, AttributeError) as error:
        raise InternalError(f"the shape rule for {name} does not take this call: {error}") from error


def _misfit(unit: Unit, node: fx.Node, message: str) -> ShapeError:
    statement = unit.source.at(node.meta.get("statement", 0))
    notes = (f"{unit.source.file}:{statement.line}", f"`{statement.text}`") if statement else ()
    return ShapeError(f"{unit.name}: {message}", notes=notes)
