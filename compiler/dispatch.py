"""Operations that choose among backends, narrowed to the backends of one bundle.

`attend`, `kda`, `kda_states` and what leaf modules call around them (`short_convolution`, `gated_norm`) are chains of
`if view.backend == "name": return ...` that end in an error. A bundle keeps the branches it may take, so that the code
of the others is not linked.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping

from draftc.compiler.errors import InternalError
from draftc.compiler.imports import LINE_LENGTH
from draftc.compiler.program import Program
from draftc.compiler.sources import Definition, Symbol, free_names, read_source

# These run everywhere, so a bundle can always fall back on them.
ALWAYS = {"attend": ("eager", "sdpa"), "kda": ("kda_recurrent", "kda_block")}


def held_backends(program: Program) -> tuple[str, ...]:
    """Names of the backends that a bundle of `program` holds: the chosen ones, and those that always work."""
    operations = {getattr(node.target, "__name__", "") for unit in program.units for node in unit.graph.nodes}
    always = [name for operation, names in ALWAYS.items() if operation in operations for name in names]
    chosen = [name for names in program.table.values() for name in names]
    return tuple(sorted({*always, *chosen}))


def narrowed_operations(symbols: Iterable[Symbol], held: tuple[str, ...]) -> Mapping[str, str]:
    """Return the text of each operation that chooses a backend, with the branches for `held` only.

    Operations are sought among `symbols` and what their definitions mention, as leaf modules mention theirs.
    """
    found: dict[str, str] = {}
    for symbol in _mentioned(symbols):
        definition = read_source(symbol.module).definitions.get(symbol.name)
        if definition is not None and _branches(definition):
            found[symbol.name] = _narrowed(definition, held)
    return found


def _mentioned(symbols: Iterable[Symbol]) -> Iterator[Symbol]:
    """Yield `symbols`, and what each definition of them mentions."""
    for symbol in symbols:
        yield symbol
        source = read_source(symbol.module)
        if symbol.name in source.definitions:
            names = free_names(source.definitions[symbol.name].node)
            yield from (other for name in names if isinstance(other := source.resolve(name), Symbol))


def _narrowed(definition: Definition, held: tuple[str, ...]) -> str:
    branches = _branches(definition)
    gone = {
        number - 1 - definition.offset
        for name, branch in branches.items()
        if name not in held
        for number in range(branch.lineno, (branch.end_lineno or branch.lineno) + 1)
    }
    kept = ", ".join(name for name in branches if name in held)
    every = f"none of {', '.join(branches)}"
    lines = [line for number, line in enumerate(definition.lines) if number not in gone]
    if every not in lines[-1]:
        raise InternalError(f"the last line of an operation must say that a backend is {every}: {lines[-1].strip()}")
    return "\n".join([*lines[:-1], *_fitted(lines[-1].replace(every, f"none of this draft's {kept}"))]) + "\n"


def _fitted(statement: str) -> tuple[str, ...]:
    """Return the lines of a statement that is one call, its argument on a line of its own where it is too long."""
    if len(statement) <= LINE_LENGTH:
        return (statement,)
    head, _, rest = statement.partition("(")
    indent = " " * (len(head) - len(head.lstrip()))
    return f"{head}(", f"{indent}    {rest[:-1]}", f"{indent})"


def _branches(definition: Definition) -> Mapping[str, ast.If]:
    """The branches of a definition by the backend they test for; empty when it does not choose."""
    if not isinstance(definition.node, ast.FunctionDef):
        return {}
    found: dict[str, ast.If] = {}
    for statement in definition.node.body:
        match statement:
            case ast.If(
                test=ast.Compare(left=ast.Attribute(attr="backend"), comparators=[ast.Constant(value=str(name))])
            ):
                found[name] = statement
    return found
