"""The Python API. What needs torch is imported when it is called."""

from pathlib import Path
from typing import TYPE_CHECKING

from draftc.spec.check import CheckReport, check_text
from draftc.spec.layout import Layout
from draftc.spec.sources import open_source

if TYPE_CHECKING:
    from draftc.compiler.api import CompiledDraft
    from draftc.compiler.program import Options

__all__ = ["check", "compile", "load"]


def check(layout: str | Path) -> CheckReport:
    """Check a layout: a path, `-` for standard input, or the name of a shipped layout.

    The report holds every finding and, when none is an error, the layout. Raises
    `draftc.spec.sources.SourceError` when there is nothing to read.

    >>> [found.code.number for found in check("qwen3-4b-dflash").diagnostics]
    []
    """
    source = open_source(str(layout))
    return check_text(source.data, source.file, source.folder)


def load(layout: str | Path) -> Layout:
    """Return the checked and resolved layout.

    Raises `draftc.spec.diagnostic.LayoutError`, which holds every finding, when the layout has errors.

    >>> load("qwen3-4b-dflash").hidden_size
    2560
    """
    return check(layout).require()


def compile(layout: "str | Path | Layout", options: "Options | None" = None) -> "CompiledDraft":  # noqa: A001
    """Compile a layout, given as for `check` or already loaded; nothing is instantiated.

    `options` (`draftc.compiler.program.Options`) hold the optimisation level, disabled passes, a forced backend, the
    CUDA capability and packages to select for. Raises `LayoutError` for a layout with errors,
    `draftc.compiler.errors.CompileError` for one that cannot be compiled, such as a backend that a layer refuses.

    >>> draft = compile("smollm2-135m-dflash")
    >>> draft.program.stack
    ('ContextLayer', 'ContextLayer', 'ContextLayer')
    """
    from draftc.compiler import api

    if isinstance(layout, Layout):
        return api.compile(layout, options)
    report = check(layout)
    return api.compile(report.require(), options, text=report.text)
