"""Training: data, the frozen target, the learner, and transformers' Trainer around them."""
