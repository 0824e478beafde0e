"""Kimi delta attention: one operation, several backends."""
