"""Decoder layers, one residual form per file."""
