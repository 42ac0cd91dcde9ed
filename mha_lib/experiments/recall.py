"""Two lookups in causal text, with four kinds of positions: recall the token one back and the token two back.

Trained at one length, and read at longer ones: nothing says where a token stands but the kind of positions.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.attention import attention
from mha_lib.heads import merge_heads, split_heads
from mha_lib.masks import causal_mask, window_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positions import rotate, sinusoidal
from mha_lib.experiments.training import fit, seeded

VOCAB, LENGTH, LOOK_BACK = 16, 12, (1, 2)
BASE = 100.0  # of the rotary angles, where no other is asked for: short texts need no slow pairs
KINDS = ("learned", "sinusoidal", "rotary", "none")


class Recall(nn.Module):
    """Embed tokens, tell positions in one of the KINDS, attend once under a causal mask, read off both lookups.

    Shapes: called with tokens (B, T); returns scores (B, T, lookups, VOCAB) for the recalled tokens.
    The learned table has a row for each place of the training; later places get its last row.
    With a window each token sees itself and the window - 1 tokens before it, and no more.

    Raises:
        ValueError: there is no such kind of positions.
    """

    def __init__(self, kind: str, d_model: int = 32, num_heads: int = 2, base: float = BASE):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"positions are one of {', '.join(KINDS)}; got {kind!r}")
        self.kind, self.base = kind, base
        self.tokens = nn.Embedding(VOCAB, d_model)
        self.table = nn.Embedding(LENGTH, d_model) if kind == "learned" else None
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.read_outs = nn.ModuleList(nn.Linear(d_model, VOCAB) for _ in LOOK_BACK)

    def forward(self, tokens: Tensor, window: int | None = None) -> Tensor:
        layer, places = self.attention, torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens)  # (B, T, d_model)
        if self.kind == "learned":
            x = x + self.table(places.clamp(max=LENGTH - 1))
        if self.kind == "sinusoidal":
            x = x + sinusoidal(tokens.size(1), x.size(-1), x.device)
        q, k, v = (split_heads(linear(x), layer.num_heads) for linear in (layer.w_q, layer.w_k, layer.w_v))
        if self.kind == "rotary":
            q, k = rotate(q, places, self.base), rotate(k, places, self.base)
        length = tokens.size(1)
        mask = causal_mask(length, tokens.device) if window is None else window_mask(length, window, tokens.device)
        heads, weights = attention(q, k, v, mask)  # (B, h, T, d_k)
        layer.attn = weights.detach()
        mixed = layer.w_o(merge_heads(heads))
        return torch.stack([read_out(mixed) for read_out in self.read_outs], dim=2)


def draw(batch: int, length: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
    """Draw random tokens (batch, length) on the CPU, then move them."""
    return torch.randint(0, VOCAB, (batch, length), generator=generator).to(device)


def targets(tokens: Tensor) -> Tensor:
    """Return what is to be recalled where both lookups exist: tokens (B, T) -> (B, T - 2, lookups)."""
    first, length = max(LOOK_BACK), tokens.size(1)
    return torch.stack([tokens[:, first - back : length - back] for back in LOOK_BACK], dim=2)


def train(
    kind: str,
    *,
    seed: int,
    steps: int = 400,
    rate: float = 1e-2,
    batch: int = 64,
    base: float = BASE,
    stop_at: float = 0.002,
    device: torch.device | str = "cpu",
    report: Callable[[int, float], None] | None = None,
) -> tuple[Recall, list[float]]:
    """Train on fresh random texts of LENGTH tokens; return the model and the loss of every step.

    The training stops early below the loss stop_at. The state of torch's generators is put back.
    """
    generator = torch.Generator().manual_seed(seed)
    model = seeded(lambda: Recall(kind, base=base), seed).to(device)

    def loss() -> Tensor:
        tokens = draw(batch, LENGTH, generator, device)
        guesses = model(tokens)[:, max(LOOK_BACK) :]
        return F.cross_entropy(guesses.flatten(0, 2), targets(tokens).flatten())

    return model, fit(model, loss, steps=steps, rate=rate, stop_at=stop_at, report=report)


@torch.no_grad()
def accuracy(model: Recall, length: int, *, window: int | None = None, seed: int = 1000, batch: int = 512) -> float:
    """Return the share of both lookups that are right in fresh texts of a length, read through a window or without one."""
    device = next(model.parameters()).device
    tokens = draw(batch, length, torch.Generator().manual_seed(seed), device)
    guesses = model(tokens, window)[:, max(LOOK_BACK) :].argmax(-1)
    return (guesses == targets(tokens)).float().mean().item()
