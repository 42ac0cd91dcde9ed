"""The layer."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.attention import attention
from mha_lib.heads import head_width, merge_heads, split_heads
from mha_lib.inputs import check_layer_inputs, with_head_axis

# torch 2.6 cannot tell exporting from compiling.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, then mix the heads with one linear map.

    Shapes: d_model is the width of every token, d_k = d_model // num_heads that of a head.
    The linears w_q, w_k, w_v and w_o are d_model to d_model; qkv_bias (default: as bias)
    decides alone about the biases of the first three.

    Raises:
        ValueError: num_heads does not divide d_model, or dropout is not a probability.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        bias: bool = True,
        qkv_bias: bool | None = None,
    ):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.d_k = head_width(d_model, num_heads)
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.w_q = nn.Linear(d_model, d_model, bias=qkv_bias)
        self.w_k = nn.Linear(d_model, d_model, bias=qkv_bias)
        self.w_v = nn.Linear(d_model, d_model, bias=qkv_bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.attn: Tensor | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> Tensor:
        """Return the output alone, so that layers stack.

        Shapes:
            query (B, T_q, d_model), key and value (B, T_k, d_model); returns (B, T_q, d_model).
            mask (T_q, T_k), (B, 1 or T_q, T_k) or (B, 1 or h, 1 or T_q, T_k); True = may attend.

        With need_weights the weights (B, h, T_q, T_k) stand in .attn afterwards, detached.
        Without, .attn is None, and PyTorch's fused product does the work: it builds no such table,
        except where dropout is at work on a CPU.

        Raises:
            ValueError: shapes, dtypes or devices do not fit; the message prints them.
            TypeError: the mask holds floats.
        """
        held = next((p.dtype for p in self.parameters() if p.is_floating_point()), None)
        check_layer_inputs(query, key, value, self.d_model, held)
        if mask is not None:
            mask = with_head_axis(mask, query, key, self.num_heads)
        q = split_heads(self.w_q(query), self.num_heads)  # (B, h, T_q, d_k)
        k = split_heads(self.w_k(key), self.num_heads)  # (B, h, T_k, d_k)
        v = split_heads(self.w_v(value), self.num_heads)  # (B, h, T_k, d_k)
        if need_weights:
            heads, weights = attention(q, k, v, mask, self.dropout)  # (B, h, T_q, d_k), (B, h, T_q, T_k)
            self._keep(weights)
        else:
            rate = self.dropout.p if self.training else 0.0
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
            self._keep(None)
        return self.w_o(merge_heads(heads))  # (B, T_q, d_model)

    def _keep(self, weights: Tensor | None) -> None:
        # torch.export takes no side effect on a module.
        if not is_exporting():
            self.attn = None if weights is None else weights.detach()


def clones(module: nn.Module, count: int) -> nn.ModuleList:
    """Return count deep copies of a module: equal at first, with separate weights.

    Raises:
        ValueError: count is negative.
    """
    if count < 0:
        raise ValueError(f"count must be at least 0; got {count}")
    return nn.ModuleList(copy.deepcopy(module) for _ in range(count))
