"""The manifest of a bundle: hashes of its files, versions, backends with their reasons, and where values came from."""

import hashlib
import json
from collections.abc import Mapping

from draftc.compiler.program import Program
from draftc.runtime.request import Choice
from draftc.spec.layout import Layout
from draftc.spec.nodes import Value
from draftc.spec.resolved import origins

FORMAT = 1
REQUIRES = {"python": ">=3.11", "torch": ">=2.11", "transformers": ">=5.19,<6"}


def manifest_json(program: Program, files: Mapping[str, str], held: tuple[str, ...], version: str) -> str:
    """Return the text of `manifest.json` for `files`, the other text files of the bundle.

    Weights are not listed: training replaces them, and the bundle stays the same.
    """
    requires: dict[str, Value] = dict(REQUIRES.items())
    hashes: dict[str, Value] = {name: _sha256(text) for name, text in sorted(files.items())}
    values: dict[str, Value] = {
        "format": FORMAT,
        "draftc": version,
        "name": program.layout.name,
        "opt": program.options.opt,
        "disabled_passes": list(program.options.disable),
        "requires": requires,
        "files": hashes,
        "backends": {"held": list(held), "layers": _layers(program)},
        "decoding_forms": _forms(program),
        "origins": _origins(program.layout),
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _layers(program: Program) -> list[Value]:
    """One entry per layer, phase and device: the backend, what forced it, and why each better one was passed over."""
    names = [layer.name for layer in program.layout.layers]
    return [
        {"layer": layer, "attention": names[layer], "phase": phase, "device": device, **_why(choice)}
        for (layer, phase, device), choice in sorted(program.choices.items())
    ]


def _forms(program: Program) -> list[Value]:
    """One entry per layer and device where an attention has two forms: the one that decodes, and why."""
    return [
        {"layer": layer, "device": device, "form": choice.form, "reason": choice.reason}
        for (layer, device), choice in sorted(program.forms.items())
    ]


def _why(choice: Choice) -> dict[str, Value]:
    refused: dict[str, Value] = {
        name: [f"{refusal.word}: {refusal.reason}" for refusal in reasons] for name, reasons in choice.refusals
    }
    forced: dict[str, Value] = {} if choice.forced_by is None else {"forced_by": choice.forced_by}
    return {"backend": choice.backend, **forced, "refused": refused}


def _origins(layout: Layout) -> dict[str, Value]:
    return dict(origins(layout).items())
