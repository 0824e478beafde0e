"""What is said of a key that the language does not know (DC101), or knows from elsewhere (DC109, DC110)."""

from draftc.schemas import load
from draftc.spec.codes import FOREIGN_KEY, RESERVED_KEY, UNKNOWN_KEY
from draftc.spec.diagnostic import Diagnostic
from draftc.spec.foreign_keys import foreign_answer, reserved_for
from draftc.spec.shape_place import Place
from draftc.spec.spelling import short

_FEW = 14


def unknown_key(place: Place, meant_key: str | None) -> Diagnostic:
    """Return DC101, or DC109 for a word of another format, or DC110 for a word that is kept for later.

    `meant_key` is the key that was meant, if that is evident.
    """
    scope = place.owner.scope
    kept = reserved_for(place.key, scope)
    if kept is not None:
        message = f"{place.key} is reserved for a later version of the language ({kept})"
        return Diagnostic(RESERVED_KEY, message, place.key_span, help=f"delete {place.key}")
    foreign = foreign_answer(place.key, scope)
    if foreign is not None:
        message = f"{place.key} is a word of other formats, not a key of {place.owner.words}"
        return Diagnostic(FOREIGN_KEY, message, place.key_span, help=foreign)
    message = f"{short(place.key)} is not a key of {place.owner.words}"
    return Diagnostic(UNKNOWN_KEY, message, place.key_span, help=_help_for_unknown(place, meant_key))


def candidates(place: Place) -> tuple[str, ...]:
    """Return the keys that the mapping of an unknown key knows and does not have yet."""
    present = {entry.name for entry in place.entries()}
    return tuple(name for name in place.violation.schema.get("properties", {}) if name not in present)


def _help_for_unknown(place: Place, meant_key: str | None) -> str:
    if meant_key is not None:
        return f"did you mean `{meant_key}`?"
    definition, advice = _ADVICE.get(place.owner.scope, ("", ""))
    if definition and place.key in load("layout-1")["$defs"][definition]["properties"]:
        return advice
    if place.owner.scope != "layout" and place.key in load("layout-1")["properties"]:
        return "it is a key of the layout itself; write it at top level"
    kinds = [
        kind for kind in ("gqa", "mha", "mla", "kda") if place.key in load("layout-1")["$defs"][kind]["properties"]
    ]
    if place.owner.scope == "attention" and kinds:
        return f"it is a key of {' and '.join(kinds)}"
    known = candidates(place)
    return f"known and not used here: {', '.join(known)}" if 0 < len(known) <= _FEW else ""


_ADVICE = {
    "layer": ("extending", "to vary one layer, write `attention: {extends: NAME, ...}` in it"),
    "target": ("targetInline", "beside `config` no key may stand: the facts come from that file"),
}
