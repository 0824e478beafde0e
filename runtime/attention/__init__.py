"""The attention modules, one kind per file."""
