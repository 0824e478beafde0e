"""The passes over a program, in order."""
