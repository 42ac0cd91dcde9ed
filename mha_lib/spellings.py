"""The same layer as three well-known kinds of code spell it, and the way of weights between all of them.

Each keeps the names and quirks of its kind. What they share is what they compute.
"""

import math

import torch
from torch import Tensor, nn

from mha_lib.multi_head import MultiHeadAttention, clones


class ClonedLinears(nn.Module):
    """The style of annotated transformers: four cloned linears in one list, the last is W_O.

    Shapes: as MultiHeadAttention; mask (B, 1 or T_q, T_k), 0 = blocked, gets its head axis inside.
    The weights after dropout stand in .attn.

    Raises:
        AssertionError: num_heads does not divide d_model.

    Source: the style of Rush, "The Annotated Transformer", 2018; written afresh.
    """

    def __init__(self, num_heads: int, d_model: int, dropout: float = 0.0):
        super().__init__()
        assert d_model % num_heads == 0, f"{d_model} features do not come out even in {num_heads} heads"
        self.h, self.d_k = num_heads, d_model // num_heads
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.dropout = nn.Dropout(p=dropout)
        self.attn: Tensor | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            mask = mask.unsqueeze(1)
        batch = query.size(0)
        query, key, value = (
            linear(x).view(batch, -1, self.h, self.d_k).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value))
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = (self.attn @ value).transpose(1, 2).contiguous().view(batch, -1, self.h * self.d_k)
        return self.linears[-1](x)


class SplitCombine(nn.Module):
    """The style of tutorials: one method for each step, no bias before the heads, one after.

    Shapes: as MultiHeadAttention; mask broadcasts to (B, h, T_q, T_k) as it is, 0 = blocked.

    Raises:
        AssertionError: num_heads does not divide d_model.

    Source: the style of many tutorials; written afresh.
    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        assert d_model % num_heads == 0, f"{d_model} features do not come out even in {num_heads} heads"
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model)

    def split_heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.num_heads, self.d_k).transpose(1, 2)

    def compute_attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1), value)

    def combine_heads(self, x: Tensor) -> Tensor:
        batch, _, length, _ = x.shape
        return x.transpose(1, 2).contiguous().view(batch, length, self.num_heads * self.d_k)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            self.split_heads(linear(x)) for linear, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value))
        )
        return self.W_o(self.combine_heads(self.compute_attention(query, key, value, mask)))


class BertStyle(nn.Module):
    """The style of BERT: Q, K, V and dense, one input, no mask.

    Shapes: hidden_states (B, T, hidden_size), which is query, key and value at once; returns the same.
    A hidden_size that does not come out even is rounded down in silence: the heads together are then narrower.

    Source: the style of BERT implementations after Devlin et al. 2019; written afresh.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, dropout: float = 0.0):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attn_head_size = int(hidden_size / num_attention_heads)
        self.all_head_size = num_attention_heads * self.attn_head_size
        self.Q = nn.Linear(hidden_size, self.all_head_size)
        self.K = nn.Linear(hidden_size, self.all_head_size)
        self.V = nn.Linear(hidden_size, self.all_head_size)
        self.dense = nn.Linear(self.all_head_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        shape = x.size()[:-1] + (self.num_attention_heads, self.attn_head_size)
        return x.view(shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k, v = (self.transpose_for_scores(f(hidden_states)) for f in (self.Q, self.K, self.V))
        probs = self.dropout((q @ k.transpose(-1, -2) / math.sqrt(self.attn_head_size)).softmax(dim=-1))
        context = (probs @ v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(context.size()[:-2] + (self.all_head_size,)))


ROLES = ("q", "k", "v", "o")
_NAMES = {
    MultiHeadAttention: ("w_q", "w_k", "w_v", "w_o"),
    ClonedLinears: ("linears.0", "linears.1", "linears.2", "linears.3"),
    SplitCombine: ("W_q", "W_k", "W_v", "W_o"),
    BertStyle: ("Q", "K", "V", "dense"),
}
# The attention of transformers' BERT and its kin, known by its parts; its norm and its residual are no part of the layer.
_TRANSFORMERS = ("self.query", "self.key", "self.value", "output.dense")


def parameters_by_role(layer: nn.Module) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the weight and the bias (or None) of q, k, v and o, as views into the layer.

    Shapes: each weight (out, in), each bias (out,).

    Raises:
        TypeError: the layer follows none of the spellings.
        ValueError: an nn.MultiheadAttention with add_bias_kv or add_zero_attn, which attends to keys of its own.
    """
    names = next((names for kind, names in _NAMES.items() if isinstance(layer, kind)), None)
    if names is None and _is_of_transformers(layer):
        names = _TRANSFORMERS
    if names is not None:
        linears = [layer.get_submodule(name) for name in names]
        return {role: (linear.weight, linear.bias) for role, linear in zip(ROLES, linears)}
    if isinstance(layer, nn.MultiheadAttention):
        _check_no_key_of_its_own(layer)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        found = dict(zip(ROLES, zip(weights, biases)))
        return found | {"o": (layer.out_proj.weight, layer.out_proj.bias)}
    known = ", ".join([kind.__name__ for kind in _NAMES] + ["nn.MultiheadAttention", "transformers' BertAttention"])
    raise TypeError(f"a {type(layer).__name__} follows none of the spellings: {known}")


@torch.no_grad()
def transfer(source: nn.Module, target: nn.Module) -> None:
    """Copy the weights of one layer into another, whatever their spellings.

    A bias that the source lacks becomes 0. The bias of the keys moves no output: a target without a place for
    it does without. Nothing is written unless everything fits.

    Raises:
        TypeError: one of the layers follows none of the spellings.
        ValueError: sizes or head counts differ, the target has no place for another bias that is not 0, or a layer
            attends to keys of its own (add_bias_kv, add_zero_attn).
    """
    given, taken = parameters_by_role(source), parameters_by_role(target)
    heads = _head_count(source), _head_count(target)
    if heads[0] != heads[1]:
        raise ValueError(f"the head counts differ: {type(source).__name__} {heads[0]}, {type(target).__name__} {heads[1]}")
    for role in ROLES:
        (weight, bias), (place, bias_place) = given[role], taken[role]
        if weight.shape != place.shape:
            raise ValueError(
                f"the weight of {role} does not fit: {type(source).__name__} {tuple(weight.shape)}, "
                f"{type(target).__name__} {tuple(place.shape)}"
            )
        if role != "k" and bias is not None and bias_place is None and bool(bias.any()):
            raise ValueError(
                f"{type(target).__name__} has no place for the bias of {role}, whose largest entry is "
                f"{bias.abs().max().item():.3g}; set it to 0 first, or choose a layer with that bias"
            )
    for role in ROLES:
        (weight, bias), (place, bias_place) = given[role], taken[role]
        place.copy_(weight)
        if bias_place is not None:
            bias_place.zero_() if bias is None else bias_place.copy_(bias)


def _check_no_key_of_its_own(layer: nn.MultiheadAttention) -> None:
    extra = {"add_bias_kv": layer.bias_k is not None, "add_zero_attn": layer.add_zero_attn}
    names = [name for name, on in extra.items() if on]
    if names:
        raise ValueError(
            f"this nn.MultiheadAttention was made with {' and '.join(names)}: its queries attend to a key that is "
            "no token, and no other spelling has such a key; take a layer made without"
        )


def _is_of_transformers(layer: nn.Module) -> bool:
    parts = dict(layer.named_modules())
    return all(isinstance(parts.get(name), nn.Linear) for name in _TRANSFORMERS)


def _head_count(layer: nn.Module) -> int:
    if _is_of_transformers(layer):
        layer = layer.get_submodule("self")
    for name in ("num_heads", "h", "num_attention_heads"):
        if hasattr(layer, name):
            return getattr(layer, name)
    raise TypeError(f"a {type(layer).__name__} has no number of heads")
