"""Text that repeats: what followed last time follows again. Two layers of attention can use that, one cannot.

Each text repeats a piece of different random tokens, of a random length, so that no fixed distance helps.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.experiments.training import fit, seeded
from mha_lib.masks import causal_mask
from mha_lib.multi_head import MultiHeadAttention

VOCAB, LENGTH, PERIODS = 16, 24, (5, 12)


class Repeats(nn.Module):
    """Embed tokens and positions, add what each layer of attention says, guess the next token at every place.

    Shapes: called with tokens (B, T); returns scores (B, T, VOCAB).
    """

    def __init__(self, layers: int, d_model: int = 64, num_heads: int = 2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, d_model)
        self.positions = nn.Embedding(LENGTH, d_model)
        self.layers = nn.ModuleList(MultiHeadAttention(d_model, num_heads) for _ in range(layers))
        self.read_out = nn.Linear(d_model, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.size(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = causal_mask(length, tokens.device)
        for layer in self.layers:
            x = x + layer(x, x, x, mask)
        return self.read_out(x)


def draw(batch: int, generator: torch.Generator, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Draw texts on the CPU, then move them: tokens (batch, LENGTH) and the period (batch,) of each."""
    shortest, longest = PERIODS
    periods = torch.randint(shortest, longest + 1, (batch,), generator=generator)
    pieces = torch.rand(batch, VOCAB, generator=generator).argsort(dim=1)  # each token once
    places = torch.arange(LENGTH) % periods.unsqueeze(1)
    return pieces.gather(1, places).to(device), periods.to(device)


def repeats(periods: Tensor) -> Tensor:
    """Return where the next token is told by what came before: periods (B,) -> bool (B, LENGTH - 1)."""
    return torch.arange(LENGTH - 1, device=periods.device) >= periods.unsqueeze(1)


def train(
    layers: int,
    *,
    seed: int,
    steps: int,
    rate: float = 3e-3,
    batch: int = 64,
    stop_at: float = 0.0,
    device: torch.device | str = "cpu",
    report: Callable[[int, float], None] | None = None,
) -> tuple[Repeats, list[float]]:
    """Train on fresh texts with Adam, on the places where they repeat; return the model and the loss of every step.

    The training stops early below the loss stop_at. The state of torch's generators is put back.
    """
    generator = torch.Generator().manual_seed(seed)
    model = seeded(lambda: Repeats(layers), seed).to(device)

    def loss() -> Tensor:
        tokens, periods = draw(batch, generator, device)
        told = repeats(periods)
        return F.cross_entropy(model(tokens)[:, :-1][told], tokens[:, 1:][told])

    return model, fit(model, loss, steps=steps, rate=rate, stop_at=stop_at, report=report)


@torch.no_grad()
def accuracy(model: Repeats, *, seed: int = 1000, batch: int = 512) -> float:
    """Return the share of next tokens guessed rightly where the text repeats."""
    device = next(model.parameters()).device
    tokens, periods = draw(batch, torch.Generator().manual_seed(seed), device)
    told = repeats(periods)
    return float((model(tokens)[:, :-1].argmax(-1) == tokens[:, 1:])[told].float().mean())


def previous_token_score(weights: Tensor) -> Tensor:
    """Return how much each head looks one place back: weights (B, h, T, T) -> (h,)."""
    return weights.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, 2))


def induction_score(weights: Tensor, periods: Tensor) -> Tensor:
    """Return how much each head looks at what followed last time, where the text repeats.

    Shapes: weights (B, h, T, T), periods (B,) -> (h,). The token at place i stood at i - period before;
    what followed it there stands at i - period + 1.

    Raises:
        ValueError: the weights are not those of as many texts as there are periods.
    """
    if periods.shape != weights.shape[:1]:
        raise ValueError(f"each text needs its period: got weights {tuple(weights.shape)}, periods {tuple(periods.shape)}")
    places = torch.arange(weights.size(-1), device=weights.device)
    targets = places - periods.unsqueeze(1) + 1  # (B, T)
    told = places >= periods.unsqueeze(1)
    looked = weights.gather(-1, targets.clamp_min(0)[:, None, :, None].expand(-1, weights.size(1), -1, 1)).squeeze(-1)
    return (looked * told.unsqueeze(1)).sum(dim=(0, 2)) / told.sum()
