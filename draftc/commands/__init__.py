"""The commands, one per file. Each imports what it needs when it runs, so that `check` never waits for torch."""
