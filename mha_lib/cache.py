"""Keys and values that were computed once, kept for the tokens to come."""

import torch
from torch import Tensor

from mha_lib.inputs import check_cache_inputs


class KeyValueCache:
    """The keys and values of all tokens so far, for one layer and one batch of texts.

    len(cache) is the number of tokens kept, cache.bytes what their keys and values weigh, and
    cache.room the number of tokens that fit before more memory is needed: the room then doubles.

    Source: Shazeer 2019, "Fast Transformer Decoding", section 2.4 (the tensors K and V of earlier steps).
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next text may have another batch, dtype or device."""
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._length = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put new tokens behind those kept, and return the keys and values of all.

        Shapes:
            key (B, h, T, d_k) and value (B, h, T, d_v), of T new tokens.
            Returns (B, h, len, d_k) and (B, h, len, d_v), views that later tokens do not change.

        Without gradients the new tokens alone are written. With them everything is copied,
        so that each step keeps the keys that it saw for its backward pass.

        Raises:
            ValueError: key and value do not fit each other or what is kept, or hold no token;
                the message prints both shapes, and the cache keeps its content.
        """
        check_cache_inputs(key, value, self._keys, self._values, self._length)
        length = self._length + key.size(2)
        self._keys = _joined(self._keys, self._length, key)
        self._values = _joined(self._values, self._length, value)
        self._length = length
        return self._keys[:, :, :length], self._values[:, :, :length]

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        """The bytes of the keys and values of the tokens kept."""
        if self._keys is None:
            return 0
        return sum(kept[:, :, : self._length].numel() * kept.element_size() for kept in (self._keys, self._values))

    @property
    def room(self) -> int:
        """The number of tokens for which there is memory already."""
        return 0 if self._keys is None else self._keys.size(2)


def _joined(kept: Tensor | None, length: int, new: Tensor) -> Tensor:
    """Return a tensor whose first tokens are the kept ones, up to length, then the new ones."""
    end = length + new.size(2)
    if torch.is_grad_enabled() and (new.requires_grad or kept is not None and kept.requires_grad):
        return new.clone() if kept is None else torch.cat((kept[:, :, :length], new), dim=2)
    if kept is None or kept.size(2) < end or _is_frozen(kept):
        room = end if kept is None else max(end, 2 * length)
        wider = new.new_empty(*new.shape[:2], room, new.size(3))
        if kept is not None:
            wider[:, :, :length] = kept[:, :, :length].detach()
        kept = wider
    # Through .data: what was handed out before shares this memory, but none of it changes.
    kept.data[:, :, length:end] = new.detach()
    return kept


def _is_frozen(kept: Tensor) -> bool:
    """Say whether a tensor was made in inference mode and we are outside, where nothing may be written into it."""
    if torch.compiler.is_compiling():
        return False
    return kept.is_inference() and not torch.is_inference_mode_enabled()
