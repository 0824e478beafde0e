"""Top-level values: what the layout states, else what the target states, else the constant of the language."""

from collections.abc import Iterator
from collections.abc import Set as SetOf
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from draftc.spec.diagnostic import Diagnostic
from draftc.spec.finding import is_whole
from draftc.spec.layout import Consumer, Dflash, Dflash2, Domino, Dspark, Family
from draftc.spec.nodes import Mapping, Node, Pointer, Scalar, plain
from draftc.spec.resolution_codes import AUTO_TAPS_IMPOSSIBLE, VALUE_NOWHERE
from draftc.spec.schema_facts import dereferenced, filled, properties, typed
from draftc.spec.span import Origin
from draftc.spec.target import TargetRead

# Blocks, and lists that are expanded elsewhere; every other key of the schema is a value of this module.
STRUCTURES = (
    "draftc",
    "family",
    "target",
    "target_layer_ids",
    "rope",
    "attentions",
    "layers",
    "dflash2",
    "domino",
    "dspark",
    "serve_on",
    "allow",
)
FROM_TARGET = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "draft_vocab_size": "vocab_size",
    "dtype": "dtype",
}
CONSTANTS = {"description": "", "final_tap": "post_norm"}  # defaults that the schema cannot state
FAMILIES: dict[str, type[Dflash2] | type[Domino] | type[Dspark]] = {
    "dflash2": Dflash2,
    "domino": Domino,
    "dspark": Dspark,
}


@dataclass(slots=True)
class Values:
    """Top-level values by key while they are gathered, with their origins by JSON pointer."""

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def put(self, key: str, value: object, origin: Origin) -> None:
        """Keep the value of `key` and where it came from."""
        self.values[key] = value
        self.origins[f"/{key}"] = origin


def resolve_values(root: Mapping, broken: SetOf[Pointer], target: TargetRead, depth: int | None) -> Values:
    """Resolve every top-level value; one that is broken is left out in silence.

    `depth` is the number of layers, None when unknown. Reports DC205 for a value that neither the layout nor the target
    states and DC234 for `auto` taps that would collide, descend or fall outside the target.
    """
    found = Values()
    for key, raw in properties().items():
        if key not in STRUCTURES and is_whole(broken, key):
            _resolve(key, dereferenced(raw), root, target, found)
    _resolve_taps(root, broken, target, depth, found)
    return found


def _resolve(key: str, schema: Any, root: Mapping, target: TargetRead, found: Values) -> None:
    node = root.get(key)
    if node is not None:
        found.put(key, typed(schema, plain(node)), Origin("layout", node.span))
    elif key in FROM_TARGET:
        _inherit(key, root, target, found)
    elif key in CONSTANTS or "default" in schema:
        found.put(key, CONSTANTS.get(key, typed(schema, schema.get("default"))), Origin("default"))


def _inherit(key: str, root: Mapping, target: TargetRead, found: Values) -> None:
    if target.target is None:
        return
    name = FROM_TARGET[key]
    value = getattr(target.target, name)
    if value is None:
        found.diagnostics.append(_nowhere(key, root))
        return
    origin = target.origins.get(name, Origin("default"))
    found.put(key, value, Origin("target", origin.span) if origin.via == "layout" else origin)


def _nowhere(key: str, root: Mapping) -> Diagnostic:
    entry = root.entry("target")
    why = "has no dense MLP or does not state it" if key == "intermediate_size" else "does not state it"
    return Diagnostic(
        VALUE_NOWHERE,
        f"{key} is not stated and the target {why}",
        entry.key.span if entry else root.span,
        help=f"state {key} in the layout",
    )


def _resolve_taps(root: Mapping, broken: SetOf[Pointer], target: TargetRead, depth: int | None, found: Values) -> None:
    node = root.get("target_layer_ids")
    if node is None or not is_whole(broken, "target_layer_ids"):
        return
    value = plain(node)
    if isinstance(value, list):
        found.put("target_layer_ids", tuple(value), Origin("layout", node.span))
    elif target.target is not None and depth is not None:
        _resolve_auto(node, target.target.num_hidden_layers, depth, found)


def _resolve_auto(node: Node, layers: int, count: int, found: Values) -> None:
    taps = auto_taps(layers, count)
    if taps == tuple(sorted(set(taps))) and taps[0] >= 0 and taps[-1] < layers:
        found.put("target_layer_ids", taps, Origin("auto", node.span))
        return
    message = f"auto gives {list(taps)} for {count} taps on {layers} layers"
    found.diagnostics.append(
        Diagnostic(AUTO_TAPS_IMPOSSIBLE, message, node.span, help="list target_layer_ids yourself")
    )


def auto_taps(layers: int, count: int) -> tuple[int, ...]:
    """Return `count` taps, evenly spaced over a target of `layers` layers, rounded exactly, half to even.

    The rule of the public DFlash drafts: from layer 1 to three before the last; a single tap is in the middle.
    """
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + Fraction(i * (layers - 4), count - 1)) for i in range(count))


def resolve_family(root: Mapping, broken: SetOf[Pointer]) -> tuple[Family | None, dict[str, Origin]]:
    """Return the family with its block as it is stated, None when either is broken, and the block's origins."""
    node = root.get("family")
    name = node.value if isinstance(node, Scalar) and is_whole(broken, "family") else None
    if name == "dflash":
        return Dflash(), {}
    block = root.get(str(name))
    if name not in FAMILIES or not isinstance(block, Mapping) or not is_whole(broken, str(name)):
        return None, {}
    facts: dict[str, Any] = filled(str(name), {entry.name: plain(entry.value) for entry in block.entries})
    facts = {**dict.fromkeys(properties(str(name))), **facts}
    origins = {f"/{name}/{entry.name}": Origin("layout", entry.value.span) for entry in block.entries}
    return FAMILIES[str(name)](**facts), origins


def resolve_consumers(root: Mapping, broken: SetOf[Pointer]) -> tuple[Consumer, ...]:
    """Return the entries of `serve_on`, none when the list is broken."""
    node = root.get("serve_on")
    entries = plain(node) if node is not None and is_whole(broken, "serve_on") else []
    return tuple(_consumers(entries)) if isinstance(entries, list) else ()


def _consumers(entries: list[Any]) -> Iterator[Consumer]:
    for entry in entries:
        stated = entry if isinstance(entry, dict) else {"consumer": entry}
        facts: dict[str, Any] = filled("consumer", stated)
        yield Consumer(facts["consumer"], facts["tensor_parallel_size"])


def resolve_allow(root: Mapping, broken: SetOf[Pointer]) -> tuple[str, ...]:
    """Return the codes of `allow`, none when the list is broken."""
    node = root.get("allow")
    entries = plain(node) if node is not None and is_whole(broken, "allow") else []
    return tuple(str(entry) for entry in entries) if isinstance(entries, list) else ()
