"""Numbers for the probes: signed, of pairwise different sizes, the same in every process."""

import torch
from torch import Tensor


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Draw standard normal numbers with a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32) * scale


def numbered(*shape: int) -> Tensor:
    """Number the cells 0, 1, 2, ... so that a wrong result shows which cell went where."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
