"""Fewer key heads than query heads: the layer of today's models."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.attention import attention
from mha_lib.cache import KeyValueCache
from mha_lib.heads import group_size, head_width, merge_heads, split_heads
from mha_lib.inputs import check_grouped_inputs, check_rotary, grouped_mask
from mha_lib.multi_head import is_exporting
from mha_lib.positions import rotary_angles, turn


class GroupedQueryAttention(nn.Module):
    """Self-attention in which several query heads share one key head and one value head.

    Query head i reads key head i // (num_heads // num_kv_heads). As many key heads as query heads
    make MultiHeadAttention again, one alone makes multi-query attention.

    Shapes: d_model is the width of every token, d_k = d_model // num_heads that of a head, of keys too.
    The linears w_q and w_o are d_model to d_model, w_k and w_v d_model to num_kv_heads * d_k.
    With rotary_base, queries and keys are turned by their positions.

    Raises:
        ValueError: num_heads does not divide d_model, num_kv_heads does not divide num_heads,
            or rotary positions meet an odd d_k.

    Source: Ainslie et al. 2023, "GQA", section 2.2; with one key head Shazeer 2019, "Fast Transformer Decoding", section 3.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        bias: bool = False,
        rotary_base: float | None = None,
    ):
        super().__init__()
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.d_k = head_width(d_model, num_heads)
        self.group = group_size(num_heads, num_kv_heads)
        self.rotary_base = rotary_base
        if rotary_base is not None:
            check_rotary(d_model, num_heads, rotary_base)
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.w_v = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.attn: Tensor | None = None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
        need_weights: bool = False,
    ) -> Tensor:
        """Return the output alone. With a cache, x holds the tokens that follow those in the cache, and joins them there.

        Shapes:
            x (B, T, d_model); returns the same. T_k = len(cache) + T, or T without a cache.
            mask (T, T_k), (B, 1 or T, T_k) or (B, 1 or h, 1 or T, T_k); True = may attend.
            Several tokens of a text at once need causal_mask(T, keys=T_k); one alone needs none.

        With need_weights the weights (B, h, T, T_k) stand in .attn afterwards, detached.
        Without, .attn is None, and neither that table nor a copy of keys for each query head is built.

        Raises:
            ValueError: shapes, dtypes or devices do not fit; the message prints them, and the cache is as before.
            TypeError: the mask holds floats.
        """
        cached = 0 if cache is None else len(cache)
        check_grouped_inputs(x, self.d_model)
        if mask is not None:
            mask = grouped_mask(mask, x, self.num_heads, cached)
        q = split_heads(self.w_q(x), self.num_heads)  # (B, h, T, d_k)
        k = split_heads(self.w_k(x), self.num_kv_heads)  # (B, h_kv, T, d_k)
        v = split_heads(self.w_v(x), self.num_kv_heads)  # (B, h_kv, T, d_k)
        if self.rotary_base is not None:
            positions = torch.arange(cached, cached + x.size(1), device=x.device)
            angles = rotary_angles(positions, self.d_k, self.rotary_base, torch.promote_types(q.dtype, torch.float32))
            cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, h_kv, T_k, d_k)
        if need_weights:
            k, v = (kept.repeat_interleave(self.group, dim=1) for kept in (k, v))  # (B, h, T_k, d_k)
            heads, weights = attention(q, k, v, mask)
            self._keep(weights)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.group > 1)
            self._keep(None)
        return self.w_o(merge_heads(heads))  # (B, T, d_model)

    def _keep(self, weights: Tensor | None) -> None:
        # torch.export takes no side effect on a module.
        if not is_exporting():
            self.attn = None if weights is None else weights.detach()
