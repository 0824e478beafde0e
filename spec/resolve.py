"""Steps 3 and 4 of the language: from a checked mapping to the parts that rules read, and to the frozen layout."""

from collections.abc import Mapping as MappingOf
from collections.abc import Set as SetOf
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftc.spec.attention_specs import Specs, TopRope, resolve_attentions
from draftc.spec.attentions import Expansion, Key, base_of, expand_attentions
from draftc.spec.defaults import Values, resolve_allow, resolve_consumers, resolve_family, resolve_values
from draftc.spec.diagnostic import Diagnostic
from draftc.spec.finding import is_whole
from draftc.spec.layers import Stack, Written, expand_layers, named_attentions
from draftc.spec.layout import Dspark, Family, Kda, LayerSpec, Layout, MlpSpec
from draftc.spec.names import colliding, repeated, unused
from draftc.spec.nodes import Mapping, Pointer
from draftc.spec.parts import Parts
from draftc.spec.span import Origin
from draftc.spec.target import TargetRead, read_target


@dataclass(frozen=True, slots=True)
class Resolution:
    """The parts that are whole, and what resolution reported."""

    parts: Parts
    diagnostics: tuple[Diagnostic, ...]


def resolve(root: Mapping, broken: SetOf[Pointer], folder: Path | None) -> Resolution:
    """Read the target, write out attentions and layers, fill in defaults.

    `broken` holds the places that the reader or the schema check reported; whatever depends on them is left out in
    silence. `folder` is what the path of a target's config is relative to, None where none may be read.
    """
    target = read_target(root, broken, folder)
    stack = expand_layers(root, broken)
    written = _written(root, stack)
    expansion = expand_attentions(written, _known(root), broken)
    specs = _specs(root, broken, stack, expansion, target)
    values = resolve_values(root, broken, target, stack.depth)
    diagnostics = (
        *target.diagnostics,
        *stack.diagnostics,
        *expansion.diagnostics,
        *unused(written, stack),
        *repeated(specs.specs, written),
        *colliding(written, stack),
        *specs.diagnostics,
        *values.diagnostics,
    )
    return Resolution(_parts(root, broken, target, stack, written, specs, values), diagnostics)


def _written(root: Mapping, stack: Stack) -> dict[str, Written]:
    named = named_attentions(root)
    return {**{one.name: one for one in stack.in_place if one.name not in named}, **named}


def _known(root: Mapping) -> tuple[str, ...]:
    block = root.get("attentions")
    return tuple(entry.name for entry in block.entries) if isinstance(block, Mapping) else ()


def _specs(root: Mapping, broken: SetOf[Pointer], stack: Stack, expansion: Expansion, target: TargetRead) -> Specs:
    used = tuple(expansion.whole[name] for name in stack.names if name in expansion.whole)
    theta = target.target.rope_theta if target.target is not None else None
    return resolve_attentions(used, _top_rope(root, broken), theta)


def _top_rope(root: Mapping, broken: SetOf[Pointer]) -> TopRope:
    node = root.get("rope")
    if not is_whole(broken, "rope"):
        return TopRope(broken=True)
    return TopRope(Key(node, Origin("layout", node.span)) if node is not None else None)


def _parts(
    root: Mapping,
    broken: SetOf[Pointer],
    target: TargetRead,
    stack: Stack,
    written: MappingOf[str, Written],
    specs: Specs,
    values: Values,
) -> Parts:
    family, block = resolve_family(root, broken)
    return Parts(
        root=root,
        values=values.values,
        target=target.target,
        family=family,
        attentions=specs.specs,
        stack=_stack_names(stack, specs),
        serve_on=resolve_consumers(root, broken),
        allow=resolve_allow(root, broken),
        bases={name: base for name, one in written.items() if (base := base_of(one.node)) is not None},
        origins={**_root_origins(root), **values.origins, **_target_origins(target), **block, **_layer_origins(stack)}
        | dict(specs.origins),
        places={one.name: one.pointer for one in stack.in_place},
    )


def _stack_names(stack: Stack, specs: Specs) -> tuple[str, ...] | None:
    names = tuple(layer.name for layer in stack.layers if layer.name in specs.specs and layer.name is not None)
    return names if names and len(names) == stack.depth else None


def _root_origins(root: Mapping) -> dict[str, Origin]:
    written = {f"/{entry.name}": Origin("layout", entry.value.span) for entry in root.entries}
    return {**dict.fromkeys(("/serve_on", "/allow"), Origin("default")), **written}


def _target_origins(target: TargetRead) -> dict[str, Origin]:
    defaults = dict.fromkeys(("dtype", "hc_mult"), Origin("default"))
    return {f"/target/{key}": origin for key, origin in {**defaults, **target.origins}.items()}


def _layer_origins(stack: Stack) -> dict[str, Origin]:
    return {f"/layers/{index}": Origin("layout", layer.span) for index, layer in enumerate(stack.layers)}


def freeze(parts: Parts) -> Layout:
    """Make the layout of parts in which nothing was reported as an error; keys without effect take their default."""
    if parts.target is None or parts.family is None or parts.stack is None:
        raise ValueError("a layout is made of whole parts only")
    values: dict[str, Any] = dict(parts.values)
    mlp = MlpSpec(values.pop("intermediate_size"), values.pop("hidden_act"))
    attends = any(not isinstance(parts.attentions[name], Kda) for name in parts.stack)
    last_is_tapped = parts.target.num_hidden_layers - 1 in values["target_layer_ids"]
    streams = parts.target.hc_mult > 1
    return Layout(
        **{
            **values,
            "final_tap": values["final_tap"] if last_is_tapped else None,
            "target_stream_contraction": values.get("target_stream_contraction") if streams else None,
            "attention_dropout": values["attention_dropout"] if attends else 0.0,
        },
        family=_with_effect(parts.family),
        target=parts.target,
        layers=tuple(LayerSpec(index, name, parts.attentions[name], mlp) for index, name in enumerate(parts.stack)),
        serve_on=parts.serve_on,
        allow=parts.allow,
        origins=parts.origins,
    )


def _with_effect(family: Family) -> Family:
    if not isinstance(family, Dspark):
        return family
    return replace(
        family,
        markov_head_type=family.markov_head_type if family.markov_rank > 0 else None,
        confidence_head_with_markov=family.confidence_head_with_markov if family.enable_confidence_head else None,
    )
