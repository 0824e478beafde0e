"""Shapes of graph nodes as polynomials in batch, block, query and context lengths."""
