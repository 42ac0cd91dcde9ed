"""Scaled dot-product attention."""

import math

import torch
from torch import Tensor, nn

from mha_lib.inputs import as_bool_mask, check_attention_inputs, check_mask


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: nn.Module | None = None,
) -> tuple[Tensor, Tensor]:
    """Mix the values by how well each query matches each key.

    Shapes:
        query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v).
        mask broadcasts to (..., T_q, T_k); True (or 1) = may attend.

    Returns:
        output (..., T_q, d_v) and weights (..., T_q, T_k). Each row of the weights sums
        to 1; a row in which every key is blocked is 0. The weights are those before dropout.

    Raises:
        ValueError: shapes, dtypes or devices do not fit; the message prints them.
        TypeError: the mask holds floats, which could mean two things.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
    """
    check_attention_inputs(query, key, value)
    # Dividing the query divides every score, without another pass over the large table.
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)  # (..., T_q, T_k)
    if mask is None:
        weights = softmax_over_keys(scores)  # (..., T_q, T_k)
    else:
        blocked = ~as_bool_mask(mask)
        check_mask(blocked, scores)
        # The smallest finite number, not -inf: a row without any allowed key would be NaN.
        lowest = torch.finfo(scores.dtype).min
        weights = softmax_over_keys(scores.masked_fill(blocked, lowest)).masked_fill(blocked, 0.0)
    kept = weights if dropout is None else dropout(weights)
    return kept @ value, weights  # (..., T_q, d_v)


def softmax_over_keys(scores: Tensor) -> Tensor:
    """Turn each row of scores (..., T_q, T_k) into weights (..., T_q, T_k) that sum to 1.

    In inference mode the weights overwrite the scores, which nothing needs again: a second table of
    that size costs more time than the softmax. torch.vmap cannot do that; use torch.no_grad around it.
    """
    overwrite = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    return torch.softmax(scores, dim=-1, out=scores if overwrite else None)
