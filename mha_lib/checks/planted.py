"""Functions with one bug each, for the exercises in which a learner finds the input that shows it."""

import torch
import torch.nn.functional as F
from torch import nn

from mha_lib.attention import attention
from mha_lib.block import Block
from mha_lib.experiments.training import seeded
from mha_lib.positions import rotate


def attention_scaled(query, key, value):
    """Attention of chapter 2, with a bug."""
    scores = query @ key.transpose(-2, -1) / key.size(-2) ** 0.5
    weights = torch.softmax(scores, dim=-1)
    return weights @ value


def attention_masked(query, key, value, mask):
    """Attention of chapter 3, with a bug."""
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    scores = scores.masked_fill(~mask, -10.0)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value


def attention_by_heads(x, num_heads):
    """Self-attention by heads of chapter 4, with a bug."""
    B, T, d_model = x.shape
    heads = x.view(B, num_heads, T, d_model // num_heads)
    output, _ = attention(heads, heads, heads)
    return output.reshape(B, T, d_model)


class Layer(nn.Module):
    """The layer of chapter 5, with a bug. One head is enough to see it."""

    def __init__(self, d_model):
        super().__init__()
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, query, key, value):
        output, _ = attention(self.w_q(query), self.w_k(key), self.w_v(key))
        return self.w_o(output)


class FusedLayer(nn.Module):
    """A layer on the fused product of chapter 7, with a bug. One head is enough to see it."""

    def __init__(self, d_model, dropout):
        super().__init__()
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.w_q(x), self.w_k(x), self.w_v(x)
        return self.w_o(F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout))


def strongest_look(query, key):
    """The largest weight that any head gives to one key, for each query, with a bug: (B, h, T, d_k) twice -> (B, T)."""
    weights = attention(query, key, key)[1].mean(dim=1)
    return weights.amax(dim=-1)
def attention_turned(query, key, value):
    """Attention with the rotary positions of chapter 9, with a bug."""
    places = torch.arange(key.size(-2))
    query, key, value = rotate(query, places), rotate(key, places), rotate(value, places)
    output, _ = attention(query, key, value)
    return output


def attention_cached(query, key, value):
    """Causal attention of chapter 10, with a bug. The queries are the last of the tokens that the keys belong to."""
    mask = None
    if query.size(-2) > 1:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
    output, _ = attention(query, key, value, mask)
    return output


def attention_grouped(query, key, value):
    """Attention of chapter 11 with fewer key heads, with a bug."""
    times = query.size(1) // key.size(1)
    output, _ = attention(query, key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1))
    return output


def attention_in_blocks(query, key, value):
    """Attention of chapter 12 in blocks of 4 keys, with a bug."""
    high = torch.full(query.shape[:-1], -torch.inf)
    total, mixed = torch.zeros_like(high), torch.zeros(*query.shape[:-1], value.size(-1))
    for j in range(0, key.size(1), 4):
        scores = query @ key[:, j : j + 4].mT / query.size(-1) ** 0.5
        highest = torch.maximum(high, scores.amax(-1))
        exp = (scores - highest.unsqueeze(-1)).exp()
        total = total * (high - highest).exp() + exp.sum(-1)
        mixed = mixed + exp @ value[:, j : j + 4]
        high = highest
    return mixed / total.unsqueeze(-1)


def pre_norm_block(d_model):
    """Return the block of chapter 13 with fixed weights, in eval mode."""
    return seeded(lambda: Block(d_model, 2), 13).eval()


def block_with_a_bug(x):
    """The block of chapter 13, with a bug."""
    block = pre_norm_block(x.size(-1))
    normed = block.norm_1(x)
    x = normed + block.attention(normed, normed, normed)
    return x + block.feed_forward(block.norm_2(x))
