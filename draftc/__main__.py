"""`python -m draftc`."""

from draftc.cli import main

main()
