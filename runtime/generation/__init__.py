"""Speculative decoding with a draft: proposals, verification, sampling that keeps the target's distribution."""
