"""The two-lookups task: recall the token one place back and the token two places back.

The first tokens look back around the end of the sequence, so that every place has both.

Attention alone can do it, in a second or two of training: small enough to watch in a notebook.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.multi_head import MultiHeadAttention
from mha_lib.experiments.training import fit, seeded

VOCAB, LENGTH, LOOK_BACK = 16, 12, (1, 2)


class Lookups(nn.Module):
    """Embed tokens and positions, attend once, and read each lookup off with a linear map.

    Shapes: called with tokens (B, T); returns scores (B, T, lookups, VOCAB) for the recalled tokens.
    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, d_model)
        self.positions = nn.Embedding(LENGTH, d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.read_outs = nn.ModuleList(nn.Linear(d_model, VOCAB) for _ in LOOK_BACK)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        mixed = self.attention(x, x, x)
        return torch.stack([read_out(mixed) for read_out in self.read_outs], dim=2)


def draw(batch: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
    """Draw random tokens (batch, LENGTH) on the CPU, then move them."""
    return torch.randint(0, VOCAB, (batch, LENGTH), generator=generator).to(device)


def targets(tokens: Tensor) -> Tensor:
    """Return what is to be recalled at every place: tokens (B, T) -> (B, T, lookups)."""
    return torch.stack([tokens.roll(back, dims=1) for back in LOOK_BACK], dim=2)


def train(
    d_model: int,
    num_heads: int,
    *,
    seed: int,
    steps: int,
    rate: float,
    batch: int = 64,
    query_factor: float = 1.0,
    change: Callable[[Lookups], None] | None = None,
    stop_at: float = 0.0,
    device: torch.device | str = "cpu",
    report: Callable[[int, float], None] | None = None,
) -> tuple[Lookups, list[float]]:
    """Train on fresh random tokens with Adam; return the model and the loss of every step.

    query_factor multiplies the projected queries, and so the scores: the square root of d_k
    takes the scaling of the layer out again. change is called with the model before the first step.
    The training stops early below the loss stop_at.
    The state of torch's generators is put back.
    """
    generator = torch.Generator().manual_seed(seed)
    model = seeded(lambda: Lookups(d_model, num_heads), seed).to(device)
    if change is not None:
        change(model)
    if query_factor != 1.0:
        model.attention.w_q.register_forward_hook(lambda module, given, out: out * query_factor)

    def loss() -> Tensor:
        tokens = draw(batch, generator, device)
        return F.cross_entropy(model(tokens).flatten(0, 2), targets(tokens).flatten())

    return model, fit(model, loss, steps=steps, rate=rate, stop_at=stop_at, report=report)


@torch.no_grad()
def accuracy(model: Lookups, *, seed: int = 1000, batch: int = 512) -> list[float]:
    """Return the share of tokens recalled rightly, for each lookup."""
    tokens = draw(batch, torch.Generator().manual_seed(seed), _device(model))
    return _shares(model(tokens), tokens)


def read_again(model: Lookups, reader: nn.Module, *, seed: int, steps: int = 600, rate: float = 1e-2) -> list[float]:
    """Train another reader behind the frozen attention; return the share that it recalls rightly, for each lookup.

    Shapes: reader (B, T, d_model) -> (B, T, lookups * VOCAB).
    """
    generator, device = torch.Generator().manual_seed(seed), _device(model)
    reader = reader.to(device)

    def read(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            x = model.tokens(tokens) + model.positions(torch.arange(LENGTH, device=device))
            mixed = model.attention(x, x, x)
        return reader(mixed).unflatten(-1, (len(LOOK_BACK), VOCAB))

    def loss() -> Tensor:
        tokens = draw(64, generator, device)
        return F.cross_entropy(read(tokens).flatten(0, 2), targets(tokens).flatten())

    fit(reader, loss, steps=steps, rate=rate)
    tokens = draw(512, torch.Generator().manual_seed(1000), device)
    return _shares(read(tokens), tokens)


@torch.no_grad()
def both_on_top(model: Lookups, *, seed: int = 1000, batch: int = 512) -> list[float]:
    """Return how often the two highest scores of a read-out are the two tokens to recall, for each read-out."""
    tokens = draw(batch, torch.Generator().manual_seed(seed), _device(model))
    wanted = targets(tokens).sort(dim=-1).values
    different = wanted[..., 0] != wanted[..., 1]
    top = model(tokens).topk(2, dim=-1).indices.sort(dim=-1).values
    return (top == wanted.unsqueeze(2)).all(-1)[different].float().mean(dim=0).tolist()


@torch.no_grad()
def looks(model: Lookups, *, seed: int = 1, batch: int = 256) -> Tensor:
    """Return the weight that each head gives each lookup's place, averaged over sentences: (heads, lookups)."""
    model(draw(batch, torch.Generator().manual_seed(seed), _device(model)))
    weights, here = model.attention.attn.mean(dim=0).cpu(), torch.arange(LENGTH)
    return torch.stack([weights[:, here, (here - back) % LENGTH].mean(dim=1) for back in LOOK_BACK], dim=1)


def _shares(scores: Tensor, tokens: Tensor) -> list[float]:
    return (scores.argmax(-1) == targets(tokens)).float().mean(dim=(0, 1)).tolist()


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
