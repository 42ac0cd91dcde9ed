"""The reference implementation of the course: multi-head attention, one idea a file."""

from mha_lib import requirements

requirements.check()

from mha_lib.attention import attention
from mha_lib.block import Block
from mha_lib.blockwise import blockwise_attention, merge
from mha_lib.cache import KeyValueCache
from mha_lib.device import get_device
from mha_lib.grouped import GroupedQueryAttention
from mha_lib.heads import merge_heads, split_heads
from mha_lib.masks import causal_mask, decoder_mask, padding_mask, to_torch_mask, window_mask
from mha_lib.multi_head import MultiHeadAttention, clones
from mha_lib.positions import rotate, sinusoidal

__all__ = [
    "Block",
    "GroupedQueryAttention",
    "KeyValueCache",
    "MultiHeadAttention",
    "attention",
    "blockwise_attention",
    "causal_mask",
    "clones",
    "decoder_mask",
    "get_device",
    "merge",
    "merge_heads",
    "padding_mask",
    "rotate",
    "sinusoidal",
    "split_heads",
    "to_torch_mask",
    "window_mask",
]
