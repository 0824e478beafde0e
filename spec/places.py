"""How messages call the places of a layout, and which kind of mapping stands where."""

from dataclasses import dataclass
from typing import Literal

from draftc.spec.nodes import Mapping, Node, Pointer, Scalar

Scope = Literal["layout", "attention", "layer", "target", "rope", "scaling", "consumer", "block", "other"]

FAMILY_BLOCKS = ("dflash2", "domino", "dspark")
SELECTORS: dict[Scope, tuple[str, ...]] = {
    "attention": ("kind", "extends"),
    "layer": ("repeat", "of", "attention"),
    "target": ("config",),
    "scaling": ("rope_type",),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """A mapping of a layout: what kind it is, and how a sentence calls it."""

    scope: Scope
    words: str


def scope_of(pointer: Pointer) -> Scope:
    """Return which kind of mapping stands at `pointer`."""
    match pointer:
        case ():
            return "layout"
        case ("attentions", _) | (*_, "attention"):
            return "attention"
        case (*_, "rope"):
            return "rope"
        case (*_, "scaling"):
            return "scaling"
        case ("layers", int()) | ("layers", int(), "of", int()):
            return "layer"
        case ("target",):
            return "target"
        case ("serve_on", int()):
            return "consumer"
        case (str(name),) if name in FAMILY_BLOCKS:
            return "block"
    return "other"


def owner(mapping: Node, pointer: Pointer) -> Owner:
    """Return what the `mapping` at `pointer` is and how messages call it."""
    scope = scope_of(pointer)
    return Owner(scope, _words(mapping, pointer, scope))


def _words(mapping: Node, pointer: Pointer, scope: Scope) -> str:
    if scope == "layout":
        return "a layout"
    if scope == "layer" or scope == "consumer":
        return named(pointer)
    if scope == "attention":
        return _attention(mapping, pointer)
    if scope in ("rope", "scaling") and len(pointer) > 1:
        return f"the {pointer[-1]} of {_holder(pointer[:-1])}"
    return named(pointer)


def _attention(mapping: Node, pointer: Pointer) -> str:
    name = str(pointer[-1]) if pointer[0] == "attentions" else f"the attention of {named(pointer[:-1])}"
    kind = mapping.get("kind") if isinstance(mapping, Mapping) else None
    return f"{name} ({kind.value})" if isinstance(kind, Scalar) and isinstance(kind.value, str) else name


def _holder(pointer: Pointer) -> str:
    if pointer[-1] == "rope":
        return "rope" if len(pointer) == 1 else f"the rope of {_holder(pointer[:-1])}"
    return str(pointer[-1]) if pointer[0] == "attentions" else named(pointer)


def named(pointer: Pointer) -> str:
    """Return the short name of a place: `head_dim`, `target_layer_ids[2]`, `layers[1].of[0]`."""
    if not pointer:
        return "the layout"
    start = next((at for at in range(len(pointer) - 1, -1, -1) if _begins(pointer, at)), 0)
    name = str(pointer[start])
    for step in pointer[start + 1 :]:
        name += f"[{step}]" if isinstance(step, int) else f".{step}"
    return name


def _begins(pointer: Pointer, at: int) -> bool:
    """Whether a short name may begin at this step: a key, unless it only says where in a list the place is."""
    return isinstance(pointer[at], str) and pointer[at] not in ("of", "attention", "consumer")
