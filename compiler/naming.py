"""What the name of a layout, lower-case words joined by `.`, `_` or `-`, is called in Python."""

import re
from dataclasses import dataclass

from draftc.compiler.errors import InternalError


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the files and classes of a bundle. `identifier` ends the names of the two Python files."""

    identifier: str
    stem: str

    @property
    def configuration(self) -> str:
        """Module of the configuration."""
        return f"configuration_{self.identifier}"

    @property
    def modeling(self) -> str:
        """Module of the model."""
        return f"modeling_{self.identifier}"

    @property
    def config_class(self) -> str:
        """Class of the configuration."""
        return f"{self.stem}DraftConfig"

    @property
    def model_class(self) -> str:
        """Class of the model."""
        return f"{self.stem}DraftModel"

    @property
    def model_type(self) -> str:
        """The word by which transformers knows the configuration; none of its own begins with `draftc_`."""
        return f"draftc_{self.identifier}"


def names_of(layout_name: str) -> Names:
    """Return the names for a layout: `qwen3-4b.v2` gives `qwen3_4b_v2` and `Qwen3_4bV2`.

    Words are joined as they are, but for an underscore where two digits would meet.
    """
    identifier = re.sub(r"[.-]", "_", layout_name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", identifier):
        raise InternalError(f"{layout_name!r} reached the compiler and is no name of a layout")
    words = [word[0].upper() + word[1:] for word in identifier.split("_") if word]
    stem = re.sub(r"(?<=[0-9])\0(?=[0-9])", "_", "\0".join(words)).replace("\0", "")
    return Names(identifier, stem)
