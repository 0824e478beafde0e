"""draftc: a compiler for draft models of speculative decoding.

>>> import draftc
>>> report = draftc.check("qwen3-4b-dflash")
>>> report.layout.block_size
16
>>> draft = draftc.compile("qwen3-4b-dflash")
>>> sorted(draft.files)[-1]
'modeling_qwen3_4b_dflash.py'
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftc.api import check as check
    from draftc.api import compile as compile  # noqa: A004 - the verb of this package
    from draftc.api import generate as generate
    from draftc.api import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "check", "compile", "generate", "load"]


def __getattr__(name: str) -> object:
    """Import the API on first use, so that `import draftc` stays cheap."""
    if name in __all__:
        from draftc import api

        return getattr(api, name)
    raise AttributeError(f"module 'draftc' has no attribute {name!r}")
