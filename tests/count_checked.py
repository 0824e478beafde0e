"""Compare the number of files that mypy checked with the number of Python files there are.

A package that a tool cannot see is skipped without a word; this makes that a failure.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("spec", "schemas", "compiler", "runtime")


def python_files() -> int:
    """Count the files of the four folders and of the face, each once."""
    face = [path for path in (ROOT / "draftc").rglob("*.py") if not any(part in FOLDERS for part in path.parts[:-1])]
    return len(face) + sum(len(list((ROOT / folder).rglob("*.py"))) for folder in FOLDERS)


def main() -> None:
    """Exit with a message unless both numbers agree."""
    found = re.search(r"no issues found in (\d+) source files", Path(sys.argv[1]).read_text(encoding="utf-8"))
    checked = int(found.group(1)) if found else 0
    if checked != python_files():
        sys.exit(f"mypy checked {checked} files, but there are {python_files()}")
    print(f"mypy checked all {checked} files")


if __name__ == "__main__":
    main()
