"""What surrounds attention in a model: normalisation, a feed-forward network, and two residual sums."""

from torch import Tensor, nn

from mha_lib.multi_head import MultiHeadAttention


class Block(nn.Module):
    """One block of a transformer, pre-norm: x + attention(norm(x)), then x + feed_forward(norm(x)).

    Shapes: called with x (B, T, d_model) and a mask as MultiHeadAttention takes it; returns (B, T, d_model).
    hidden is the width inside the feed-forward network (default: 4 * d_model).

    Raises:
        ValueError: num_heads does not divide d_model, or hidden is not at least 1.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1; the norm in front: Xiong et al. 2020,
    "On Layer Normalization in the Transformer Architecture".
    """

    def __init__(self, d_model: int, num_heads: int, hidden: int | None = None, dropout: float = 0.0):
        super().__init__()
        hidden = 4 * d_model if hidden is None else hidden
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1; got {hidden}")
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, hidden), nn.GELU(), nn.Linear(hidden, d_model))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (B, T, d_model)."""
        normed = self.norm_1(x)  # (B, T, d_model)
        x = x + self.attention(normed, normed, normed, mask)  # (B, T, d_model)
        return x + self.feed_forward(self.norm_2(x))  # (B, T, d_model)
