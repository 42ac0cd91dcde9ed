"""Masks: which query may attend to which key. True = may attend, everywhere in the course."""

import torch
from torch import Tensor

from mha_lib.inputs import with_head_axis


def causal_mask(queries: int, device: torch.device | str | None = None, *, keys: int | None = None) -> Tensor:
    """Allow each token itself and the tokens before it; with more keys than queries, the queries are the last tokens.

    Shapes: returns bool (1, queries, keys); True = may attend. keys is queries where it is not given.

    Raises:
        ValueError: a size is negative, or there are fewer keys than queries.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
    """
    keys = queries if keys is None else keys
    if not 0 <= queries <= keys:
        raise ValueError(
            f"each query stands among the keys, so there must be at least as many keys: got queries={queries}, keys={keys}"
        )
    return torch.ones(1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def window_mask(size: int, window: int, device: torch.device | str | None = None) -> Tensor:
    """Allow each token itself and the tokens before it, window of them at most.

    Shapes: returns bool (1, size, size); True = may attend.

    Raises:
        ValueError: size is negative, or window is less than 1.

    Source: Beltagy et al. 2020, "Longformer", section 3.1 (sliding window), under a causal mask.
    """
    if window < 1:
        raise ValueError(f"a token sees itself at least, so window must be at least 1; got {window}")
    return causal_mask(size, device).triu(1 - window)


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """Allow every key that is a real token, for every query.

    Shapes: tokens (B, T) integers; returns bool (B, 1, T) on the device of the tokens.

    Raises:
        ValueError: tokens has not the two axes (B, T).
    """
    _check_tokens(tokens)
    return (tokens != pad_id).unsqueeze(1)


def decoder_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """Allow the real tokens up to and including the own position.

    Shapes: tokens (B, T) integers; returns bool (B, T, T) on the device of the tokens.

    Raises:
        ValueError: tokens has not the two axes (B, T).
    """
    return padding_mask(tokens, pad_id) & causal_mask(tokens.size(1), tokens.device)


def to_torch_mask(mask: Tensor, query: Tensor, key: Tensor, num_heads: int) -> Tensor:
    """Turn a mask of the course into the attn_mask that nn.MultiheadAttention takes.

    Shapes:
        mask (T_q, T_k), (B, 1 or T_q, T_k) or (B, 1 or h, 1 or T_q, T_k); True = may attend.
        query (B, T_q, d_model), key (B, T_k, d_model).
        Returns bool (B*h, T_q, T_k); True = blocked, the opposite meaning.

    Raises:
        ValueError: the mask fits none of those shapes.
        TypeError: the mask holds floats.

    Source: the attn_mask argument in the documentation of torch.nn.MultiheadAttention.
    """
    allowed = with_head_axis(mask, query, key, num_heads)
    full = (query.size(0), num_heads, query.size(1), key.size(1))
    return ~allowed.expand(full).reshape(-1, query.size(1), key.size(1))


def _check_tokens(tokens: Tensor) -> None:
    if tokens.dim() != 2:
        raise ValueError(f"tokens must be (B, T); got {tuple(tokens.shape)}")
