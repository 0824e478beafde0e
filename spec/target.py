"""The target in its three forms: a preset, a config.json, or the facts written out. All end in one record."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from collections.abc import Set as SetOf
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftc.spec.diagnostic import Diagnostic
from draftc.spec.finding import is_whole
from draftc.spec.layout import Target
from draftc.spec.nodes import Mapping, Pointer, Scalar, Value, find, plain
from draftc.spec.reader import read
from draftc.spec.resolution_codes import TARGET_TOKEN_WITHOUT_ROW, UNKNOWN_PRESET
from draftc.spec.schema_facts import filled
from draftc.spec.span import Origin
from draftc.spec.suggest import nearest
from draftc.spec.target_config import read_config


@dataclass(frozen=True, slots=True)
class Preset:
    """A target that draftc ships: its name, the repository whose config.json states it, and the facts."""

    name: str
    source: str
    facts: MappingOf[str, Value]


@dataclass(frozen=True, slots=True)
class TargetRead:
    """What reading the target gave: the record unless it is broken, the origin of each stated field by its key."""

    target: Target | None = None
    origins: MappingOf[str, Origin] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


@cache
def list_targets() -> tuple[str, ...]:
    """Return the names of the target presets, sorted."""
    folder = files("draftc.spec").joinpath("targets")
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


@cache
def preset(name: str) -> Preset:
    """Return the preset called `name`; raises KeyError when there is none (`list_targets` names them)."""
    if name not in list_targets():
        raise KeyError(name)
    file = files("draftc.spec").joinpath("targets", f"{name}.yaml")
    root = read(file.read_bytes(), file.name).root
    facts = plain(root) if root is not None else {}
    if not isinstance(facts, dict):
        raise KeyError(name)
    return Preset(name, str(facts.pop("source")), facts)


def read_target(root: Mapping, broken: SetOf[Pointer], folder: Path | None) -> TargetRead:
    """Read the target of a layout; DC240 to DC243 leave it None, DC244 and DC245 do not.

    `folder` is what the path of a config is relative to; None where no file may be read (shipped layouts).
    """
    found = _read(root, broken, folder)
    if found.target is None:
        return found
    return replace(found, diagnostics=(*found.diagnostics, *_tokens_without_row(root, found.target)))


def _read(root: Mapping, broken: SetOf[Pointer], folder: Path | None) -> TargetRead:
    node = root.get("target")
    if node is None or not is_whole(broken, "target"):
        return TargetRead()
    if isinstance(node, Scalar):
        return _from_preset(node)
    config = find(node, ("config",))
    if isinstance(config, Scalar):
        facts = read_config(config, folder)
        return TargetRead(_record(facts.values) if facts.values else None, facts.origins, facts.diagnostics)
    return _inline(node) if isinstance(node, Mapping) else TargetRead()


def _inline(node: Mapping) -> TargetRead:
    origins = {entry.name: Origin("layout", entry.value.span) for entry in node.entries}
    return TargetRead(_record({entry.name: plain(entry.value) for entry in node.entries}), origins)


def _from_preset(node: Scalar) -> TargetRead:
    name = str(node.value)
    if name not in list_targets():
        return TargetRead(diagnostics=(_unknown_preset(name, node),))
    facts = preset(name).facts
    return TargetRead(preset_target(name), {key: Origin(f"preset {name}: {key}") for key in facts})


@cache
def preset_target(name: str) -> Target:
    """Return the record of the preset called `name`; raises KeyError when there is none."""
    return _record(preset(name).facts)


def _record(facts: MappingOf[str, Value]) -> Target:
    """Make the record of facts that agree with the schema's `targetInline`."""
    values: dict[str, Any] = filled("targetInline", facts)
    ends = values.pop("eos_token_id", ())
    special = values.pop("special_token_ids", {})
    return Target(
        **values,
        eos_token_id=(ends,) if isinstance(ends, int) else tuple(ends),
        special_token_ids=tuple(special.items()),
    )


def _unknown_preset(name: str, node: Scalar) -> Diagnostic:
    sources = {preset(known).source.casefold(): known for known in list_targets()}
    best = sources.get(name.casefold()) or nearest(name.rpartition("/")[2], list_targets())
    hint = f"did you mean `{best}`? or write" if best else f"known: {', '.join(list_targets())}; or write"
    return Diagnostic(
        UNKNOWN_PRESET,
        f"no target preset is called {name}",
        node.span,
        help=f"{hint} `target: {{config: path}}`",
    )


def _tokens_without_row(root: Mapping, target: Target) -> Iterator[Diagnostic]:
    for key, token, pointer in named_tokens(target):
        if token >= target.vocab_size:
            node = find(root, pointer) or find(root, ("target",)) or root
            yield Diagnostic(
                TARGET_TOKEN_WITHOUT_ROW,
                f"{key} {token} of the target has no row: vocab_size is {target.vocab_size}",
                node.span,
                help="the target's config is inconsistent; check vocab_size",
            )


def named_tokens(target: Target) -> Iterator[tuple[str, int, Pointer]]:
    """Yield every token that the target gives a meaning: its key, its id, and the pointer to where it is stated."""
    for key in ("bos_token_id", "pad_token_id"):
        token = getattr(target, key)
        if token is not None:
            yield key, token, ("target", key)
    for token in target.eos_token_id:
        yield "eos_token_id", token, ("target", "eos_token_id")
    for key, token in target.special_token_ids:
        yield key, token, ("target", "special_token_ids", key)
