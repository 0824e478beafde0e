"""Training objectives: small terms that add up over blocks, and their composition."""
