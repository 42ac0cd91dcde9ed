"""Attention by heads with one step replaced: what the mimics of chapters 4 and 5 are made of."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mha_lib.heads import merge_heads, split_heads


def scaled(q: Tensor, k: Tensor, num_heads: int) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


def scaled_by(factor: Callable) -> Callable:
    """Return scores multiplied by factor(d_k, number of heads, number of keys)."""
    return lambda q, k, h: q @ k.transpose(-2, -1) * factor(q.size(-1), h, k.size(-2))


def hide(scores: Tensor, mask: Tensor) -> Tensor:
    """Block with a head axis, as is right."""
    mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
    return scores.masked_fill(mask == 0, -math.inf)


def as_it_is(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


def repeated(scores: Tensor, mask: Tensor) -> Tensor:
    """Fold the heads into the batch and repeat the mask in the wrong order."""
    batch, heads, query_len, key_len = scores.shape
    mask = mask.expand(batch, query_len, key_len).repeat(heads, 1, 1)
    folded = scores.reshape(-1, query_len, key_len).masked_fill(mask == 0, -math.inf)
    return folded.reshape(scores.shape)


def view_split(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(x.size(0), num_heads, x.size(1), -1)


def view_merge(x: Tensor) -> Tensor:
    return x.reshape(x.size(0), x.size(2), -1)


def interleaved_split(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], -1, num_heads).permute(0, 3, 1, 2)


def interleaved_merge(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).flatten(2)


def heads_with(
    *,
    split: Callable = split_heads,
    merge: Callable = merge_heads,
    scores: Callable = scaled,
    block: Callable = hide,
    normalise: Callable = lambda s: s.softmax(-1),
    inputs: Callable = lambda q, k, v: (q, k, v),
) -> Callable:
    """Return heads(query, key, value, num_heads, mask=None) -> (output, weights) with steps replaced."""

    def heads(query, key, value, num_heads, mask=None):
        q, k, v = inputs(*(split(x, num_heads) for x in (query, key, value)))
        table = scores(q, k, num_heads)
        if mask is not None:
            table = block(table, mask)
        weights = normalise(table)
        return merge(weights @ v), weights

    return heads


def causal_anyway(query_len: int, key_len: int) -> Tensor:
    return torch.ones(query_len, key_len, dtype=torch.bool).tril()
