"""Codes of compiling (DC4xx), of bundles (DC5xx) and of faults of draftc itself (DC9xx).

No rule of the language finds them: what raises them stands in the compiler and in the command line.
"""

from draftc.spec.diagnostic import Code, Severity

UNTRACEABLE_FORWARD = Code("DC401", "untraceable-forward", Severity.ERROR)
SHAPE_MISMATCH = Code("DC402", "shape-mismatch", Severity.ERROR)
BACKEND_REFUSES = Code("DC404", "backend-refuses", Severity.ERROR)
UNKNOWN_OPTION = Code("DC405", "unknown-option", Severity.ERROR)
NOT_A_BUNDLE = Code("DC501", "not-a-bundle", Severity.ERROR)
BUNDLE_DOES_NOT_RUN = Code("DC502", "bundle-does-not-run", Severity.ERROR)
WEIGHTS_DO_NOT_FIT = Code("DC503", "weights-do-not-fit", Severity.ERROR)
INTERNAL_ERROR = Code("DC900", "internal-error", Severity.ERROR)

COMPILING_CODES = (
    UNTRACEABLE_FORWARD,
    SHAPE_MISMATCH,
    BACKEND_REFUSES,
    UNKNOWN_OPTION,
    NOT_A_BUNDLE,
    BUNDLE_DOES_NOT_RUN,
    WEIGHTS_DO_NOT_FIT,
    INTERNAL_ERROR,
)
