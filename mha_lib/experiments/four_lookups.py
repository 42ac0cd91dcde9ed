"""Four lookups with grouped heads: recall the tokens one and two places before and after.

At the end of the text they look on around to its other end, so that every place has all four.
Eight key heads learn it; then some of them are averaged away.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.experiments.training import fit, seeded
from mha_lib.grouped import GroupedQueryAttention

VOCAB, LENGTH, AWAY = 16, 12, (-2, -1, 1, 2)
D_MODEL, HEADS = 64, 8


class FourLookups(nn.Module):
    """Embed tokens and positions, attend once with grouped heads, and read each lookup off with a linear map.

    Shapes: called with tokens (B, T); returns scores (B, T, lookups, VOCAB) for the recalled tokens.
    """

    def __init__(self, num_kv_heads: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, D_MODEL)
        self.positions = nn.Embedding(LENGTH, D_MODEL)
        self.attention = GroupedQueryAttention(D_MODEL, HEADS, num_kv_heads, bias=True)
        self.read_outs = nn.ModuleList(nn.Linear(D_MODEL, VOCAB) for _ in AWAY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        mixed = self.attention(self.tokens(tokens) + self.positions(places), need_weights=True)
        return torch.stack([read_out(mixed) for read_out in self.read_outs], dim=2)


def draw(batch: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
    """Draw random tokens (batch, LENGTH) on the CPU, then move them."""
    return torch.randint(0, VOCAB, (batch, LENGTH), generator=generator).to(device)


def targets(tokens: Tensor) -> Tensor:
    """Return what is to be recalled at every place: tokens (B, T) -> (B, T, lookups)."""
    return torch.stack([tokens.roll(-away, dims=1) for away in AWAY], dim=2)


def new(num_kv_heads: int, *, seed: int, device: torch.device | str = "cpu") -> FourLookups:
    """Return an untrained model; the state of torch's generators is put back."""
    return seeded(lambda: FourLookups(num_kv_heads), seed).to(device)


def train(
    model: FourLookups,
    *,
    seed: int,
    steps: int = 300,
    rate: float = 3e-3,
    batch: int = 64,
    stop_at: float = 0.005,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Go on training a model on fresh random tokens with Adam; return the loss of every step.

    The training stops early below the loss stop_at.
    """
    generator, device = torch.Generator().manual_seed(seed), next(model.parameters()).device

    def loss() -> Tensor:
        tokens = draw(batch, generator, device)
        return F.cross_entropy(model(tokens).flatten(0, 2), targets(tokens).flatten())

    return fit(model, loss, steps=steps, rate=rate, stop_at=stop_at, report=report)


@torch.no_grad()
def with_averaged_heads(model: FourLookups, num_kv_heads: int) -> FourLookups:
    """Return a model with fewer key heads, each the mean of a group of the model's neighbouring key heads.

    All other weights are copied.

    Raises:
        ValueError: num_kv_heads does not divide the model's number of key heads.

    Source: Ainslie et al. 2023, "GQA", section 2.1 (mean pooling).
    """
    before = model.attention.num_kv_heads
    if num_kv_heads <= 0 or before % num_kv_heads:
        raise ValueError(f"{before} key heads cannot be averaged to {num_kv_heads}: groups would be uneven")
    fewer = new(num_kv_heads, seed=0, device=next(model.parameters()).device)
    state = model.state_dict()
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        rows = state[f"attention.{name}"]  # (h_kv * d_k, ...)
        groups = rows.unflatten(0, (num_kv_heads, before // num_kv_heads, -1))
        state[f"attention.{name}"] = groups.mean(1).flatten(0, 1)
    fewer.load_state_dict(state)
    return fewer


@torch.no_grad()
def accuracy(model: FourLookups, *, seed: int = 1000, batch: int = 512) -> float:
    """Return the share of all lookups that are right."""
    tokens = draw(batch, torch.Generator().manual_seed(seed), next(model.parameters()).device)
    return (model(tokens).argmax(-1) == targets(tokens)).float().mean().item()
