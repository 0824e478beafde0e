"""Attention of dense layers: one operation, several backends."""
