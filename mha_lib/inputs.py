"""What may be passed in: every check of shapes, dtypes and devices, and its message."""

import torch
from torch import Tensor


def as_bool_mask(mask: Tensor) -> Tensor:
    """Return the mask as booleans, True = may attend; 0/1 integers are accepted.

    Raises:
        TypeError: the mask holds floats.
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(
            f"the mask holds {mask.dtype}, which could mean two things: 1 = may attend and "
            "0 = blocked, or numbers to add to the scores (0 = may attend, -inf = blocked). "
            "Pass booleans, True = may attend: (mask != 0) for the first, (mask == 0) for the second."
        )
    return mask != 0


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check what is given to attention: axes, sizes, devices and dtypes that fit together."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"each input needs at least two axes, (T, features); got {shapes}")
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query and key differ on axis -1, the features that are multiplied: "
            f"{query.size(-1)} and {key.size(-1)}; got {shapes}"
        )
    if key.size(-2) != value.size(-2):
        raise ValueError(
            f"key and value differ on axis -2, the tokens: every key needs a value, "
            f"but there are {key.size(-2)} keys and {value.size(-2)} values; got {shapes}"
        )
    if not key.shape[:-2] == value.shape[:-2] == query.shape[:-2]:
        try:
            torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"the axes in front of (T, features) do not fit together: got {shapes}"
            ) from None
    _check_devices(query, key, value)
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"the inputs have different dtypes: query {query.dtype}, key {key.dtype}, "
            f"value {value.dtype}; convert them with .to(query.dtype)"
        )
    if not query.is_floating_point():
        raise ValueError(f"the inputs must hold floats, not {query.dtype}; convert them with .float()")


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Check that a mask lies where the scores lie and broadcasts to them."""
    if mask.device != scores.device:
        raise ValueError(
            f"the mask lies on {mask.device}, the inputs on {scores.device}; "
            "build it there or move it with .to(query.device)"
        )
    offset = scores.dim() - mask.dim()
    if offset < 0:
        raise ValueError(
            f"the mask {tuple(mask.shape)} has more axes than the scores {tuple(scores.shape)}"
        )
    for axis in range(mask.dim()):
        if mask.size(axis) not in (1, scores.size(axis + offset)):
            raise ValueError(
                f"the mask {tuple(mask.shape)} does not broadcast to the scores "
                f"{tuple(scores.shape)}: axis {axis - mask.dim()} is {mask.size(axis)}, "
                f"but must be 1 or {scores.size(axis + offset)}"
            )


def check_layer_inputs(query: Tensor, key: Tensor, value: Tensor, d_model: int, dtype: torch.dtype | None = None) -> None:
    """Check what is given to a layer: (B, T, d_model) three times, on one device, of the dtype of its parameters."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 3:
            raise ValueError(f"{name} must be (B, T, d_model); got {shapes}")
        if x.size(-1) != d_model:
            raise ValueError(
                f"{name} has {x.size(-1)} features on axis -1, but d_model={d_model}; got {shapes}"
            )
    if not query.size(0) == key.size(0) == value.size(0):
        raise ValueError(f"query, key and value differ on axis 0, the batch; got {shapes}")
    if key.size(1) != value.size(1):
        raise ValueError(f"key and value differ on axis 1, the tokens; got {shapes}")
    _check_devices(query, key, value)
    if dtype is not None and not query.dtype == key.dtype == value.dtype == dtype and not torch.is_autocast_enabled(query.device.type):
        raise ValueError(
            f"the layer holds {dtype}, the inputs hold query {query.dtype}, key {key.dtype}, value {value.dtype}; "
            f"convert them with .to({dtype}), or the layer with layer.to(query.dtype)"
        )


def with_head_axis(mask: Tensor, query: Tensor, key: Tensor, num_heads: int) -> Tensor:
    """Check a mask given to a layer and put in the axis of the heads.

    Shapes: as for to_torch_mask; returns bool with 2 or 4 axes that broadcasts to (B, h, T_q, T_k).

    Raises:
        ValueError: the mask fits none of the accepted shapes; the message prints them.
        TypeError: the mask holds floats.
    """
    return with_head_axis_for(mask, query.size(0), num_heads, query.size(1), key.size(1))


def with_head_axis_for(mask: Tensor, batch: int, num_heads: int, query_len: int, key_len: int) -> Tensor:
    """Do as with_head_axis, where the sizes are known and not the inputs."""
    mask = as_bool_mask(mask)
    accepted = {
        2: ((1, query_len), (key_len,)),
        3: ((1, batch), (1, query_len), (key_len,)),
        4: ((1, batch), (1, num_heads), (1, query_len), (key_len,)),
    }
    sizes = accepted.get(mask.dim())
    if sizes is None or any(size not in fits for size, fits in zip(mask.shape, sizes)):
        raise ValueError(
            f"the mask {tuple(mask.shape)} does not fit B={batch}, h={num_heads}, "
            f"T_q={query_len}, T_k={key_len}: give it as (T_q, T_k), (B, 1 or T_q, T_k) "
            "or (B, 1 or h, 1 or T_q, T_k)"
        )
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


def _check_devices(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.device == key.device == value.device:
        raise ValueError(
            f"the inputs lie on different devices: query {query.device}, key {key.device}, "
            f"value {value.device}; move them with .to(query.device)"
        )


def check_rotation(x: Tensor, positions: Tensor, base: float) -> None:
    """Check what is given to rotate: an even width, and a position for every token."""
    shapes = f"x {tuple(x.shape)}, positions {tuple(positions.shape)}"
    if x.dim() < 2:
        raise ValueError(f"x must be (..., T, d_k); got {shapes}")
    if x.size(-1) % 2 or x.size(-1) == 0:
        raise ValueError(f"rotary positions turn pairs of features, so d_k must be even and at least 2; got d_k={x.size(-1)}")
    if base <= 0:
        raise ValueError(f"base must be greater than 0; got {base}")
    if positions.device != x.device:
        raise ValueError(f"the positions lie on {positions.device}, x on {x.device}; move them with .to(x.device)")
    room = x.shape[:-1]
    offset = len(room) - positions.dim()
    if offset < 0 or any(n not in (1, room[offset + i]) for i, n in enumerate(positions.shape)):
        raise ValueError(
            f"the positions do not broadcast to {tuple(room)}, the axes of x in front of the features; "
            f"got {shapes}: give (T,), or (B, 1, T) beside heads (B, h, T, d_k)"
        )
    # What a tensor holds is not known while a graph is traced, nor on the meta device.
    if not torch.compiler.is_compiling() and positions.device.type != "meta" and bool((positions < 0).any()):
        raise ValueError(f"positions must be at least 0; the smallest is {positions.min().item()}")


def check_cache_inputs(key: Tensor, value: Tensor, keys: Tensor | None, values: Tensor | None, length: int) -> None:
    """Check what is appended to a cache, beside the length tokens that it keeps already."""
    if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
        raise ValueError(
            "key must be (B, h, T, d_k) and value (B, h, T, d_v), of the same tokens; "
            f"got key {tuple(key.shape)}, value {tuple(value.shape)}"
        )
    if key.size(2) == 0:
        raise ValueError(f"there is no token to append: axis 2 must be at least 1; got key {tuple(key.shape)}")
    if key.dtype != value.dtype or key.device != value.device:
        raise ValueError(f"key and value differ: key {key.dtype} on {key.device}, value {value.dtype} on {value.device}")
    for name, new, kept in (("key", key, keys), ("value", value, values)):
        if kept is not None and _kind(new) != _kind(kept):
            held = (*kept.shape[:2], length, kept.size(3))
            raise ValueError(
                f"the {name} {tuple(new.shape)}, {new.dtype} on {new.device}, does not fit the cache, which keeps "
                f"{held}, {kept.dtype} on {kept.device}: batch, heads, features, dtype and device must be the same. "
                "Another layer or text needs a cache of its own, or reset()"
            )


def _kind(x: Tensor) -> tuple:
    return x.size(0), x.size(1), x.size(3), x.dtype, x.device


def check_rotary(d_model: int, num_heads: int, base: float) -> None:
    """Check that the heads of a layer can be turned: an even width of each, and a base."""
    if d_model // num_heads % 2:
        fitting = [n for n in range(1, d_model + 1) if d_model % n == 0 and d_model // n % 2 == 0]
        raise ValueError(
            f"rotary positions turn pairs of features, but d_model={d_model} in num_heads={num_heads} heads makes "
            f"d_k={d_model // num_heads}, which is odd; these head counts make it even: {', '.join(map(str, fitting)) or 'none'}"
        )
    if base <= 0:
        raise ValueError(f"rotary_base must be greater than 0; got {base}")


def check_grouped_inputs(x: Tensor, d_model: int) -> None:
    """Check what is given to a layer of self-attention: (B, T, d_model), of one token at least."""
    if x.dim() != 3:
        raise ValueError(f"x must be (B, T, d_model); got {tuple(x.shape)}")
    if x.size(-1) != d_model:
        raise ValueError(f"x has {x.size(-1)} features on axis -1, but d_model={d_model}; got {tuple(x.shape)}")
    if x.size(1) == 0:
        raise ValueError(f"x holds no token: axis 1 must be at least 1; got {tuple(x.shape)}")


def grouped_mask(mask: Tensor, x: Tensor, num_heads: int, cached: int) -> Tensor:
    """Check a mask whose keys are the cached tokens and those of x, and put in the axis of the heads."""
    batch, length = x.size(0), x.size(1)
    if mask.device != x.device:
        raise ValueError(f"the mask lies on {mask.device}, x on {x.device}; build it there or move it with .to(x.device)")
    try:
        return with_head_axis_for(mask, batch, num_heads, length, cached + length)
    except ValueError as error:
        raise ValueError(
            f"{error}. T_k counts the {cached} tokens in the cache and the {length} new ones: "
            f"causal_mask({length}, keys={cached + length}) has that shape"
        ) from None
