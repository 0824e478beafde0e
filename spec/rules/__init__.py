"""The rules of the language, one per file, in the order of their codes."""
