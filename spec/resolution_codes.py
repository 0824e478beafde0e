"""Codes of resolution: names and references, the target, and values that no source states."""

from draftc.spec.diagnostic import Code, Severity

UNKNOWN_ATTENTION = Code("DC120", "unknown-attention", Severity.ERROR)
UNKNOWN_BASE = Code("DC121", "unknown-base", Severity.ERROR)
EXTENDS_CYCLE = Code("DC122", "extends-cycle", Severity.ERROR)
KEY_NOT_OF_KIND = Code("DC123", "key-not-of-kind", Severity.ERROR)
ATTENTION_UNUSED = Code("DC124", "attention-unused", Severity.WARNING)
ATTENTION_REPEATED = Code("DC125", "attention-repeated", Severity.WARNING)
CLASS_NAME_COLLISION = Code("DC126", "class-name-collision", Severity.ERROR)
LAYER_NAME_TAKEN = Code("DC127", "layer-name-taken", Severity.ERROR)
TOO_MANY_LAYERS = Code("DC128", "too-many-layers", Severity.ERROR)

VALUE_NOWHERE = Code("DC205", "value-nowhere", Severity.ERROR)
AUTO_TAPS_IMPOSSIBLE = Code("DC234", "auto-taps-impossible", Severity.ERROR)

UNKNOWN_PRESET = Code("DC240", "unknown-preset", Severity.ERROR)
TARGET_CONFIG_UNREADABLE = Code("DC241", "target-config-unreadable", Severity.ERROR)
TARGET_CONFIG_INCOMPLETE = Code("DC242", "target-config-incomplete", Severity.ERROR)
TARGET_CONFIG_IS_A_DRAFT = Code("DC243", "target-config-is-a-draft", Severity.ERROR)
TARGET_TOKEN_WITHOUT_ROW = Code("DC244", "target-token-without-row", Severity.WARNING)
TARGET_KEY_ALIAS = Code("DC245", "target-key-alias", Severity.NOTE)

CAUSALITY_UNSTATED = Code("DC262", "causality-unstated", Severity.ERROR)
ROPE_MISSING = Code("DC270", "rope-missing", Severity.ERROR)

RESOLUTION_CODES = (
    UNKNOWN_ATTENTION,
    UNKNOWN_BASE,
    EXTENDS_CYCLE,
    KEY_NOT_OF_KIND,
    ATTENTION_UNUSED,
    ATTENTION_REPEATED,
    CLASS_NAME_COLLISION,
    LAYER_NAME_TAKEN,
    TOO_MANY_LAYERS,
    VALUE_NOWHERE,
    AUTO_TAPS_IMPOSSIBLE,
    UNKNOWN_PRESET,
    TARGET_CONFIG_UNREADABLE,
    TARGET_CONFIG_INCOMPLETE,
    TARGET_CONFIG_IS_A_DRAFT,
    TARGET_TOKEN_WITHOUT_ROW,
    TARGET_KEY_ALIAS,
    CAUSALITY_UNSTATED,
    ROPE_MISSING,
)
