"""Where a token stands: a table to add, or an angle to turn by."""

import torch
from torch import Tensor

from mha_lib.inputs import check_rotation


def sinusoidal(length: int, d_model: int, device: torch.device | str | None = None) -> Tensor:
    """Return the table of sines and cosines that is added to the tokens.

    Shapes: returns float32 (length, d_model); feature 2i is a sine, feature 2i + 1 the cosine of the same angle,
    position / 10,000^(2i / d_model).

    Raises:
        ValueError: length is negative, or d_model is not even.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    if length < 0:
        raise ValueError(f"length must be at least 0; got {length}")
    if d_model <= 0 or d_model % 2:
        raise ValueError(f"sines and cosines come in pairs, so d_model must be even and at least 2; got {d_model}")
    angles = rotary_angles(torch.arange(length, device=device), d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn each pair of features (i, i + d_k/2) by an angle that grows with the position of the token.

    Queries and keys turned like this have scores that depend on the distance alone.

    Shapes:
        x (..., T, d_k) with an even d_k; returns the same.
        positions (T,), or what broadcasts to (..., T): (B, 1, T) beside heads (B, h, T, d_k).
        Pair i turns by positions / base^(2i / d_k).

    Raises:
        ValueError: d_k is odd, a position is negative, or shapes or devices do not fit; the message prints them.

    Source: Su et al. 2021, "RoFormer", section 3.2.2, with the pairs as the Llama models lay them.
    """
    check_rotation(x, positions, base)
    # In half precision a position over 2,048 is not even an exact number: angles need 32 bits at least.
    angles = rotary_angles(positions, x.size(-1), base, torch.promote_types(x.dtype, torch.float32))
    return turn(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def rotary_angles(positions: Tensor, d_k: int, base: float = 10_000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the angle of every position and pair: positions (..., T) -> (..., T, d_k // 2)."""
    pairs = torch.arange(0, d_k, 2, device=positions.device, dtype=dtype) / d_k
    return positions.to(dtype).unsqueeze(-1) * (1.0 / base**pairs)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + d_k/2) of x (..., T, d_k); cos and sin broadcast to (..., T, d_k // 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
