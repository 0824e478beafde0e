"""From hidden states of blocks to tokens: slots, logits, the heads of the families, one of each per file."""
