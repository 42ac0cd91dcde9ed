"""A small writer: the model that the exercises about decoding generate text with."""

from torch import Tensor, nn

from mha_lib.cache import KeyValueCache
from mha_lib.grouped import GroupedQueryAttention


class Writer(nn.Module):
    """Embed tokens, attend in layers that add to their input, and score every token that could come next.

    Shapes: called with tokens (B, T), a mask and one cache for each layer; returns scores (B, T, vocab).
    """

    def __init__(self, vocab: int = 40, d_model: int = 24, num_heads: int = 3, num_layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.layers = nn.ModuleList(
            GroupedQueryAttention(d_model, num_heads, num_heads, rotary_base=10_000.0) for _ in range(num_layers)
        )
        self.read_out = nn.Linear(d_model, vocab)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, caches: list[KeyValueCache] | None = None) -> Tensor:
        x = self.embed(tokens)  # (B, T, d_model)
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
            x = x + layer(x, mask, cache=cache)
        return self.read_out(x)

    def new_caches(self) -> list[KeyValueCache]:
        """Return an empty cache for each layer."""
        return [KeyValueCache() for _ in self.layers]
