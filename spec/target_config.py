"""A target's facts read from its config.json, leniently: aliases and nesting are followed and reported."""

import json
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from draftc.spec.diagnostic import Code, Diagnostic
from draftc.spec.nodes import Entry, Mapping, Node, Plain, Scalar, Sequence, Value
from draftc.spec.resolution_codes import (
    TARGET_CONFIG_INCOMPLETE,
    TARGET_CONFIG_IS_A_DRAFT,
    TARGET_CONFIG_UNREADABLE,
    TARGET_KEY_ALIAS,
)
from draftc.spec.schema_check import check_subschema
from draftc.spec.schema_facts import properties
from draftc.spec.span import Origin, Position, Span

LIMIT = 4 * 1024 * 1024
REQUIRED = ("hidden_size", "num_hidden_layers", "vocab_size")
NESTED = ("text_config", "llm_config", "language_config")
DRAFT_KEYS = ("dflash_config", "eagle_config", "speculators_model_type")
DRAFT_WORDS = ("Draft", "Eagle")
EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_intermediate_size")
DTYPES = ("bfloat16", "float16", "float32")
TOKEN_SUFFIXES = ("_token_id", "_token_index")
MAX_TOKEN_ID = 16777215

# Spellings of a field besides its own, in the order in which they are tried.
ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "max_position_embeddings": ("model_max_length", "n_positions", "max_sequence_length"),
    "rms_norm_eps": ("norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_epsilon"),
    "dtype": ("torch_dtype",),
    "hc_mult": ("hc_count",),
}
SILENT_ALIASES = ("torch_dtype", "hc_count")
HINTS = ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "model_type")
_NOWHERE = Span("", Position(1, 1, 0), Position(1, 1, 0))
FIELDS = (*REQUIRED, "intermediate_size", "max_position_embeddings", "rms_norm_eps", "dtype", "hc_mult", *HINTS)


class UnreadableConfigError(Exception):
    """A config.json cannot be read; the text of the error continues "target config PATH"."""


@dataclass(frozen=True, slots=True)
class ConfigRead:
    """What a config.json states: fields of `targetInline` (empty when it is broken), their origins, and findings."""

    values: MappingOf[str, Value] = field(default_factory=dict)
    origins: MappingOf[str, Origin] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """A field of the record, the key of the file that states it, and the value."""

    name: str
    key: str
    value: Value


def read_config(node: Scalar, folder: Path | None) -> ConfigRead:
    """Read the config.json that `node` names, relative to `folder`; a folder stands for the config.json in it.

    Reports DC241 (unreadable), DC242 (a required field absent, or one that is not what the schema asks for), DC243 (a
    draft's file) and DC245 (a field read from another spelling).
    """
    stated = str(node.value)
    try:
        path = _path(stated, folder)
        config = _parse(path)
    except UnreadableConfigError as problem:
        hint = "the path is relative to the layout file" if "exist" in str(problem) else ""
        return ConfigRead(diagnostics=(_said(TARGET_CONFIG_UNREADABLE, stated, str(problem), node.span, hint),))
    sign = _sign_of_draft(config)
    if sign:
        hint = "name the config of the model that the draft serves"
        return ConfigRead(diagnostics=(_said(TARGET_CONFIG_IS_A_DRAFT, stated, sign, node.span, hint),))
    return _collect(config, stated, node.span)


def _said(code: Code, stated: str, words: str, span: Span, hint: str = "") -> Diagnostic:
    return Diagnostic(code, f"target config {stated} {words}", span, help=hint)


def _path(stated: str, folder: Path | None) -> Path:
    if folder is None:
        raise UnreadableConfigError("is not read: a shipped layout names a preset or writes the facts out")
    try:
        path = folder / stated
        path = path / "config.json" if path.is_dir() else path
        if not path.exists():
            raise UnreadableConfigError("does not exist")
        if not path.is_file():
            raise UnreadableConfigError("is not a file")
    except (OSError, ValueError) as problem:
        raise UnreadableConfigError(f"cannot be opened: {_words(problem)}") from problem
    return path


def _words(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem)


def _parse(path: Path) -> dict[str, Value]:
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as problem:
        raise UnreadableConfigError(f"cannot be opened: {_words(problem)}") from problem
    if len(data) > LIMIT:
        raise UnreadableConfigError("is larger than 4 MiB")
    try:
        config = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise UnreadableConfigError(f"is not UTF-8 (byte {problem.start})") from problem
    except json.JSONDecodeError as problem:
        raise UnreadableConfigError(f"is not JSON: line {problem.lineno}, column {problem.colno}") from problem
    except (ValueError, RecursionError) as problem:
        raise UnreadableConfigError("is not JSON that can be read: a number too long or nesting too deep") from problem
    if not isinstance(config, dict):
        raise UnreadableConfigError("is not a JSON object")
    return config


def _sign_of_draft(config: MappingOf[str, Value]) -> str:
    """Say what makes a config that of a draft; empty when nothing does."""
    for key in DRAFT_KEYS:
        if key in config:
            return f"describes a draft: it has {key}"
    names = config.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and any(word in name for word in DRAFT_WORDS):
            return f"describes a draft: its architecture is {name}"
    return ""


def _scopes(config: dict[str, Value]) -> tuple[dict[str, Value], ...]:
    """The places where a field may stand, the one that wins first."""
    for name in NESTED:
        inner = config.get(name)
        if isinstance(inner, dict):
            return (inner, config)
    return (config,)


def _collect(config: dict[str, Value], stated: str, span: Span) -> ConfigRead:
    scopes = _scopes(config)
    found = [*_fields(scopes), *_tokens(scopes)]
    problems = (*_missing(found, stated, span), *_misfits(found, stated, span))
    notes = tuple(_alias_notes(found, span))
    if problems:
        return ConfigRead(diagnostics=(*problems, *notes))
    file = _file_name(stated)
    origins = {one.name: Origin(f"{file}: {one.key}") for one in found}
    return ConfigRead({one.name: one.value for one in found}, origins, notes)


def _file_name(stated: str) -> str:
    """Name the file as the layout does, never by an absolute path."""
    path = PurePath(stated)
    file = path if path.suffix == ".json" else path / "config.json"
    return file.name if file.is_absolute() else file.as_posix()


def _fields(scopes: tuple[dict[str, Value], ...]) -> Iterator[_Found]:
    for name in FIELDS:
        found = _lookup(name, scopes)
        if found is None or (name == "intermediate_size" and _has_experts(scopes)):
            continue
        if name == "dtype":
            found = _Found(name, found.key, _dtype(found.value))
        if name not in HINTS or _fits(found):
            yield found


def _lookup(name: str, scopes: tuple[dict[str, Value], ...]) -> _Found | None:
    spellings = (name, *ALIASES.get(name, ()))
    places = list(scopes)
    if name == "rope_theta":
        ropes = [scope.get("rope_parameters") for scope in scopes]
        places += [rope for rope in ropes if isinstance(rope, dict)]
    for scope in places:
        for key in spellings:
            if scope.get(key) is not None:
                return _Found(name, key, scope[key])
    return None


def _has_experts(scopes: tuple[dict[str, Value], ...]) -> bool:
    return any(scope.get(key) not in (None, 0) for scope in scopes for key in EXPERT_KEYS)


def _dtype(value: Value) -> Value:
    """Return the storage type without torch's prefix; types that a draft cannot have (fp8) count as bfloat16."""
    word = value.removeprefix("torch.") if isinstance(value, str) else value
    return word if word in DTYPES else "bfloat16"


def _tokens(scopes: tuple[dict[str, Value], ...]) -> Iterator[_Found]:
    for name in ("bos_token_id", "pad_token_id"):
        ids = [scope[name] for scope in scopes if _is_token(scope.get(name))]
        if ids:
            yield _Found(name, name, ids[0])
    ends = list(dict.fromkeys(end for scope in scopes for end in _ends(scope.get("eos_token_id"))))
    if ends:
        yield _Found("eos_token_id", "eos_token_id", [*ends] if len(ends) > 1 else ends[0])
    special = _special(scopes)
    if special:
        yield _Found("special_token_ids", ", ".join(special), special)


def _ends(value: Value) -> list[int]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, int) and _is_token(item)]


def _special(scopes: tuple[dict[str, Value], ...]) -> dict[str, Value]:
    plain = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {
        key: value
        for scope in reversed(scopes)
        for key, value in scope.items()
        if key.endswith(TOKEN_SUFFIXES) and key not in plain and _is_token(value)
    }


def _is_token(value: Value) -> bool:
    """Whether a value is a token id; some files write -1 for none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_ID


def _missing(found: list[_Found], stated: str, span: Span) -> Iterator[Diagnostic]:
    present = {one.name for one in found}
    hint = "add the key to that file, or write the target's facts in the layout"
    for name in REQUIRED:
        if name not in present:
            yield _said(TARGET_CONFIG_INCOMPLETE, stated, f"states no {name}", span, hint)


def _misfits(found: list[_Found], stated: str, span: Span) -> Iterator[Diagnostic]:
    hint = "repair that file, or write the target's facts in the layout"
    for one in found:
        if not _fits(one):
            words = f"states {one.key} {json.dumps(one.value)}, which cannot be {one.name} of a target"
            yield _said(TARGET_CONFIG_INCOMPLETE, stated, words, span, hint)


def _fits(one: _Found) -> bool:
    return not tuple(check_subschema(_node(one.value), properties("targetInline")[one.name], (one.name,)))


def _node(value: Value) -> Node:
    """A node without a place, so that the schema's own check can judge a value of a foreign file."""
    if isinstance(value, list):
        return Sequence(tuple(_node(item) for item in value), _NOWHERE)
    if isinstance(value, dict):
        return Mapping(tuple(Entry(_scalar(key), _node(item)) for key, item in value.items()), _NOWHERE)
    return _scalar(value)


def _scalar(value: Plain) -> Scalar:
    return Scalar(value, _NOWHERE, str(value))


def _alias_notes(found: list[_Found], span: Span) -> Iterator[Diagnostic]:
    for one in found:
        if one.key in ALIASES.get(one.name, ()) and one.key not in SILENT_ALIASES:
            yield Diagnostic(TARGET_KEY_ALIAS, f"{one.name} {one.value} was read from {one.key}", span)
