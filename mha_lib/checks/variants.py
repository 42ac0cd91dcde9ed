"""Attention with one step replaced: what the mimics of the known mistakes are made of."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


def pair(output: Tensor, weights: Tensor, scores: Tensor) -> tuple:
    return output, weights


def attention_with(
    *,
    scores: Callable = scaled,
    hide: Callable = fill,
    normalise: Callable = softmax,
    mix: Callable = lambda weights, value, key, query: weights @ value,
    drop: Callable = lambda weights, dropout: weights if dropout is None else dropout(weights),
    give: Callable = pair,
) -> Callable:
    """Return attention(query, key, value, mask=None, dropout=None) with the given steps in place of the right ones."""

    def attention(query, key, value, mask=None, dropout=None):
        raw = scores(query, key, value)
        if mask is not None:
            raw = hide(raw, mask)
        weights = normalise(raw)
        return give(mix(drop(weights, dropout), value, key, query), weights, raw)

    return attention


def scores_times(factor: Callable) -> Callable:
    """Return scores multiplied by factor(query, key)."""
    return lambda query, key, value: query @ key.transpose(-2, -1) * factor(query, key)


def by_hand(shift: Callable, divide: Callable) -> Callable:
    """Return a softmax written by hand: exp of the shifted scores, then the division."""

    def normalise(scores: Tensor) -> Tensor:
        exp = torch.exp(scores - shift(scores))
        return divide(exp)

    return normalise


def in_place_on_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query /= math.sqrt(query.size(-1))
    return query @ key.transpose(-2, -1)


def in_place_on_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key /= math.sqrt(key.size(-1))
    return query @ key.transpose(-2, -1)
