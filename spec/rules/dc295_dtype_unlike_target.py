"""The draft reads the target's hidden states as they come."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import finding, number, of_target, top

CODE = Code("DC295", "dtype-unlike-target", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find a dtype that is not the target's."""
    dtype = parts.values.get("dtype")
    if dtype is None or parts.target is None or dtype == parts.target.dtype:
        return
    yield finding(
        CODE,
        f"dtype {number(dtype)} differs from the target's {parts.target.dtype};"
        " the target's hidden states are not cast",
        top(parts, "dtype"),
        [of_target(parts, "dtype")],
        "drop dtype to take the target's",
    )
