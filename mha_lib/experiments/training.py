"""The training loop that the small experiments of the course share."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module from a seed; the state of torch's generators is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    rate: float,
    stop_at: float = 0.0,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Take steps of Adam on a loss that draws its own batch; return the loss before every step.

    Stops early once the loss falls below stop_at. report is called with (step, loss).
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    losses = []
    for step in range(steps):
        value = loss()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append(value.item())
        if report is not None:
            report(step, losses[-1])
        if losses[-1] < stop_at:
            break
    return losses
