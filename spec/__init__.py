"""The layout language: reading, diagnostics, the typed layout, rules and presets. Imports no torch."""
