"""The draft models of the families that have heads, one per file."""
