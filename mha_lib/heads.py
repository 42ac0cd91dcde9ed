"""Cutting the features into heads, and joining the heads again."""

from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the features of every token into heads, and put the head axis in front of the tokens.

    Shapes: x (B, T, d_model); returns (B, h, T, d_k), a view, with d_k = d_model // num_heads.

    Raises:
        ValueError: x has not three axes, or d_model is not divisible by num_heads.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    if x.dim() != 3:
        raise ValueError(f"x must be (B, T, d_model); got {tuple(x.shape)}")
    d_k = head_width(x.size(-1), num_heads)
    return x.unflatten(-1, (num_heads, d_k)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Put the features of all heads side by side again: the inverse of split_heads.

    Shapes: x (B, h, T, d_k); returns (B, T, h * d_k).

    Raises:
        ValueError: x has not four axes.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2 (Concat).
    """
    if x.dim() != 4:
        raise ValueError(f"x must be (B, h, T, d_k); got {tuple(x.shape)}")
    return x.transpose(1, 2).flatten(2)


def head_width(d_model: int, num_heads: int) -> int:
    """Return d_k, the number of features of one head.

    Raises:
        ValueError: num_heads is not positive, or does not divide d_model.
    """
    if num_heads <= 0:
        raise ValueError(f"num_heads must be at least 1; got {num_heads}")
    if d_model <= 0:
        raise ValueError(f"d_model must be at least 1; got {d_model}")
    if d_model % num_heads:
        fitting = [n for n in range(1, d_model + 1) if d_model % n == 0]
        raise ValueError(
            f"d_model={d_model} cannot be cut into num_heads={num_heads} equal heads; "
            f"these head counts work: {', '.join(map(str, fitting))}"
        )
    return d_model // num_heads


def group_size(num_heads: int, num_kv_heads: int) -> int:
    """Return how many query heads share one key head.

    Raises:
        ValueError: num_kv_heads is not positive, or does not divide num_heads.
    """
    if num_kv_heads <= 0 or num_heads % num_kv_heads:
        fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        raise ValueError(
            f"num_heads={num_heads} query heads cannot share num_kv_heads={num_kv_heads} key heads evenly; "
            f"these numbers of key heads work: {', '.join(map(str, fitting))}"
        )
    return num_heads // num_kv_heads
