"""Drafts for SmolLM2-135M-Instruct, trained and compared on one card: `python -m recipes.smollm2.experiment --help`."""
