"""Experiments with draftc that can be run again."""
