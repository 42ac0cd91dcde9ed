"""Numbers for the probes: signed, of pairwise different sizes, the same in every process."""

import torch
from torch import Tensor

from mha_lib.masks import padding_mask


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Draw standard normal numbers with a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32) * scale


def numbered(*shape: int) -> Tensor:
    """Number the cells 0, 1, 2, ... so that a wrong result shows which cell went where."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def padding(batch: int, length: int) -> Tensor:
    """Return a padding mask (batch, 1, length) in which the sentences differ, and none is all padding."""
    tokens = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        tokens[row, length - row % (length - 1) :] = 0
    return padding_mask(tokens, 0)
