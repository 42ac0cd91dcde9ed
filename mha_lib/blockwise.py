"""Attention in blocks of queries and keys: what a fused kernel does, in plain PyTorch."""

import math

import torch
from torch import Tensor

from mha_lib.inputs import check_attention_inputs


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block: int = 128, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend without ever building the table of weights.

    Keys are visited in blocks. For every query a running maximum, a running sum of exponentials and a running
    mixture are kept; when a block raises the maximum, sum and mixture are rescaled to it. With causal the mask
    stands at the bottom right, and blocks that it hides whole are never visited.

    Shapes:
        query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v).

    Returns:
        output (..., T_q, d_v), and log_sum_exp (..., T_q): the logarithm of the sum of the exponentials of the
        scaled scores, by which merge joins results over different keys. A query that sees no key gets 0 and -inf.

    Raises:
        ValueError: block is no whole number from 1 on; shapes, dtypes or devices do not fit.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention".
    """
    _check_block(block)
    check_attention_inputs(query, key, value)
    rows = [
        _one_block_of_queries(query[..., i : i + block, :], key, value, block, causal, i + key.size(-2) - query.size(-2))
        for i in range(0, query.size(-2), block)
    ]
    if not rows:
        return query.new_zeros(*query.shape[:-1], value.size(-1)), query.new_zeros(query.shape[:-1])
    outputs, sums = zip(*rows)
    return torch.cat(outputs, dim=-2), torch.cat(sums, dim=-1)


def blocks_to_visit(queries: int, keys: int, block: int, *, causal: bool = False) -> list[tuple[int, int]]:
    """Return the blocks (row, column) of the table of weights that are not hidden whole, in the order of a visit.

    Raises:
        ValueError: block is no whole number from 1 on.
    """
    _check_block(block)
    found = []
    for row in range(-(-queries // block)):
        last_query = min((row + 1) * block, queries) - 1
        seen = max(min(keys, last_query + 1 + keys - queries), 0) if causal else keys
        found += [(row, column) for column in range(-(-seen // block))]
    return found


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Join two results of the same queries over different keys, as if all keys had been seen at once.

    Shapes: each a pair of output (..., T_q, d_v) and log_sum_exp (..., T_q); returns such a pair.

    Raises:
        ValueError: the shapes of the two results differ.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    (output, total), (other, other_total) = first, second
    if output.shape != other.shape or total.shape != other_total.shape or output.shape[:-1] != total.shape:
        raise ValueError(
            "the two results must be of the same queries: got "
            f"output {tuple(output.shape)} with log_sum_exp {tuple(total.shape)}, and "
            f"output {tuple(other.shape)} with log_sum_exp {tuple(other_total.shape)}"
        )
    both = torch.logaddexp(total, other_total)
    shift = both.masked_fill(both == -math.inf, 0.0)
    share = (total - shift).exp().unsqueeze(-1)
    other_share = (other_total - shift).exp().unsqueeze(-1)
    return output * share + other * other_share, both


def _one_block_of_queries(query, key, value, block, causal, offset):
    """Attend with neighbouring queries; the first of them may see the keys up to and including number offset."""
    size = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]), query.size(-2))
    high = query.new_full(size, -math.inf)
    total = query.new_zeros(size)
    mixed = query.new_zeros(*size, value.size(-1))
    scaled = query / math.sqrt(query.size(-1))
    seen = min(key.size(-2), offset + query.size(-2)) if causal else key.size(-2)
    for j in range(0, max(seen, 0), block):
        scores = scaled @ key[..., j : j + block, :].transpose(-2, -1)
        if causal and j + block > offset + 1:
            places = torch.arange(query.size(-2), device=query.device).unsqueeze(-1) + offset
            ahead = torch.arange(j, j + scores.size(-1), device=query.device) > places
            scores = scores.masked_fill(ahead, -math.inf)
        highest = torch.maximum(high, scores.amax(-1))
        # A query that has seen no key yet has no maximum: -inf minus -inf would be NaN.
        shift = highest.masked_fill(highest == -math.inf, 0.0)
        rescale = (high - shift).exp()
        weights = (scores - shift.unsqueeze(-1)).exp()
        total = total * rescale + weights.sum(-1)
        mixed = mixed * rescale.unsqueeze(-1) + weights @ value[..., j : j + block, :]
        high = highest
    output = mixed / total.masked_fill(total == 0, 1.0).unsqueeze(-1)
    return output, high + total.log()


def _check_block(block: int) -> None:
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(f"block must be a whole number from 1 on; got {block!r}")
