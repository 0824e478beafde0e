"""draftc: a compiler for draft models of speculative decoding."""
