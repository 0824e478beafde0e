"""What a test asks of a CUDA card."""

import pytest
import torch


def require_card(major: int) -> None:
    """Skip where no card has compute capability `major`.0 or more."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (major, 0):
        pytest.skip(f"needs a CUDA card of compute capability {major}.0")
