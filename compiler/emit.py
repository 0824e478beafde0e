"""The text files of a bundle, from a program after all passes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import draftc
from draftc.compiler.classes import Printed, print_class
from draftc.compiler.config_json import config_json, config_values
from draftc.compiler.dispatch import held_backends, narrowed_operations
from draftc.compiler.errors import InternalError
from draftc.compiler.families import family_form
from draftc.compiler.imports import Import, import_block
from draftc.compiler.linker import Linked, link
from draftc.compiler.manifest import manifest_json
from draftc.compiler.naming import Names, names_of
from draftc.compiler.pretty import Group, Piece, Prefixed, call, laid_out, literal
from draftc.compiler.program import DEVICES, Device, Program
from draftc.compiler.readme import readme, summary
from draftc.compiler.skeleton import render
from draftc.compiler.sources import Symbol
from draftc.spec.nodes import Value
from draftc.spec.resolved import resolved, resolved_json

CONFIG_TYPES: Mapping[str, str] = {
    "context_width": "int | None",
    "draft_vocab_size": "int | None",
    "final_logit_softcapping": "float | None",
    "layer_types": "list[str] | None",
    "markov_head_type": "str | None",
    "mask_token_id": "int | None",
    "sliding_window": "int | None",
    "target_hidden_size": "int | None",
    "target_layer_ids": "list[int] | None",
}
# `kda_states` mentions it, so it is linked wherever a layer reads context into a state.
PLAN_STATES = Symbol("draftc.runtime.kda.states", "plan_states")


def bundle_files(program: Program, source: str | None = None) -> dict[str, str]:
    """Return the text files of the bundle of `program`, by name.

    `source` is the layout as it was written; without it `layout.yaml` holds the resolved form, which is a layout as
    well. Equal programs give equal bytes: no time, no path, no order of a hash table enters.
    """
    layout, version = program.layout, draftc.__version__
    names, held = names_of(layout.name), held_backends(program)
    form = resolved_json(layout)
    configuration = _configuration(program, names)
    files = {
        "README.md": readme(program, held, version),
        "config.json": config_json(layout, resolved(layout), version),
        f"{names.configuration}.py": configuration[0],
        "layout.resolved.json": form,
        "layout.yaml": form if source is None else source,
        **_modeling(program, names, held, configuration[1]),
    }
    return {**files, "manifest.json": manifest_json(program, files, held, version)}


def _configuration(program: Program, names: Names) -> tuple[str, Linked]:
    base = family_form(program.layout).config
    linked = link([base])
    fields = _fields(config_values(program.layout))
    imports = {Import("huggingface_hub.dataclasses", "strict"), *linked.imports}
    if "field(" in fields:
        imports.add(Import("dataclasses", "field"))
    text = render(
        "configuration.py.j2",
        layout_name=program.layout.name,
        version=draftc.__version__,
        names=names,
        base=base.name,
        imports=import_block(imports),
        linked=linked.text,
        fields=fields,
    )
    return text, linked


def _fields(values: Mapping[str, Value]) -> str:
    """Declarations of the configuration's fields with the layout's values; lists are made anew for each instance."""
    return "\n".join(f"    {_field(name, value)}" for name, value in values.items())


def _field(name: str, value: Value) -> str:
    head = f"{name}: {CONFIG_TYPES.get(name, type(value).__name__)} = "
    if not isinstance(value, list):
        return head + laid_out(literal(value), 4, 4 + len(head))
    made = Group("field(", (Prefixed("default_factory=lambda: ", literal(value)),), ")")
    return head + laid_out(made, 4, 4 + len(head))


def _modeling(program: Program, names: Names, held: tuple[str, ...], configuration: Linked) -> dict[str, str]:
    """Return the model's file, and the files of kernels that its functions import when they are called."""
    printed = [print_class(unit) for unit in program.emitted]
    symbols = list(dict.fromkeys(symbol for entry in printed for symbol in entry.symbols))
    mentioned = frozenset().union(*(entry.attributes for entry in printed))
    form = family_form(program.layout)
    linked = _linked([*symbols, form.model, *form.parts.values()], held, names, configuration, mentioned)
    operations = _linked(symbols, held, names, configuration, linked.attributes)
    _require_distinct([*linked.names, *(unit.name for unit in program.emitted), names.model_class])
    before, after = linked.parted(operations.names)
    text = render(
        "modeling.py.j2",
        layout_name=program.layout.name,
        summary=summary(program.layout),
        version=draftc.__version__,
        names=names,
        base=form.model.name,
        imports=import_block(_imports(linked, printed, names)),
        operations=before,
        classes="\n\n".join(entry.text for entry in printed),
        machinery=after,
        attributes=[*_model_attributes(program, held), *(f"{name} = {part.name}" for name, part in form.parts.items())],
    )
    return {f"{names.modeling}.py": text, **linked.companions}


def _linked(
    roots: Sequence[Symbol], held: tuple[str, ...], names: Names, configuration: Linked, attributes: frozenset[str]
) -> Linked:
    """Link what `roots` reach beside code that mentions `attributes`; the configuration's names are imported."""
    return link(
        roots,
        replaced=narrowed_operations(roots, held),
        provided=dict.fromkeys(configuration.names, f".{names.configuration}"),
        attributes=attributes,
    )


def _imports(linked: Linked, printed: Iterable[Printed], names: Names) -> set[Import]:
    own = {
        Import("collections.abc", "Mapping"),
        Import("typing", "ClassVar"),
        Import(f".{names.configuration}", names.config_class),
    }
    return own.union(linked.imports, *(entry.imports for entry in printed))


def _model_attributes(program: Program, held: tuple[str, ...]) -> list[str]:
    """The class attributes of the model that depend on the stack and its backends."""
    table = program.table
    chosen = {name for names in table.values() for name in names}
    available = tuple(name for name in held if name not in chosen)
    values: dict[str, Piece] = {
        "layer_classes = ": Group("(", tuple(program.stack), ")"),
        "backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = ": literal(table),
        "available = ": literal(available),
    }
    if any(facts.memory == "state" for facts in program.facts):
        # Called through the instance: a plain function would be handed the model.
        values["plan_scan = "] = call("staticmethod", PLAN_STATES.name)
    forms = {device: program.decoding_forms(device) for device in DEVICES}
    if any(forms.values()):
        values["decoding_forms: ClassVar[Mapping[str, Mapping[type, type]]] = "] = _classes_by_device(forms)
    return [head + laid_out(piece, 4, 4 + len(head)) for head, piece in values.items()]


def _classes_by_device(forms: Mapping[Device, Mapping[str, str]]) -> Group:
    """The mapping of `forms` with the names of classes as they are."""
    named = {
        device: tuple(Prefixed(f"{plain}: ", form) for plain, form in found.items()) for device, found in forms.items()
    }
    return Group("{", tuple(Prefixed(f'"{device}": ', Group("{", pairs, "}")) for device, pairs in named.items()), "}")


def _require_distinct(names: Iterable[str]) -> None:
    """Raise InternalError when two definitions of a bundle would share a name."""
    for name in _repeated(names):
        raise InternalError(f"a bundle would define {name} twice")


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
