"""Guessing the next token of random text: possible only by looking at it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.masks import causal_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.experiments.training import fit, seeded

VOCAB, LENGTH = 16, 12


class NextToken(nn.Module):
    """Embed tokens and positions, attend once, guess the next token at every place.

    Shapes: called with tokens (B, T) and a mask; returns scores (B, T, VOCAB).
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, d_model)
        self.positions = nn.Embedding(LENGTH, d_model)
        self.attention = MultiHeadAttention(d_model, 1)
        self.read_out = nn.Linear(d_model, VOCAB)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        return self.read_out(self.attention(x, x, x, mask))


def train(
    masked: bool,
    *,
    seed: int,
    d_model: int = 32,
    steps: int = 150,
    rate: float = 1e-2,
    batch: int = 64,
    device: torch.device | str = "cpu",
) -> list[float]:
    """Train with or without a causal mask on fresh random text; return the loss of every step."""
    generator = torch.Generator().manual_seed(seed)
    model = seeded(lambda: NextToken(d_model), seed).to(device)
    mask = causal_mask(LENGTH, device) if masked else None

    def loss() -> Tensor:
        tokens = torch.randint(0, VOCAB, (batch, LENGTH), generator=generator).to(device)
        guesses = model(tokens, mask)[:, :-1]  # nobody asks the last place: its next token does not exist
        return F.cross_entropy(guesses.flatten(0, 1), tokens[:, 1:].flatten())

    return fit(model, loss, steps=steps, rate=rate)
