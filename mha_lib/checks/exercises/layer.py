"""The checks of chapter 5: dropout on the weights, and the whole layer."""

import torch
from torch import nn

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Fresh, Probe
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.compare import first_of
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.mistakes.dropout import DROPOUT
from mha_lib.checks.mistakes.layer import LAYER
from mha_lib.checks.recipe import attention_with, layer_with
from mha_lib.experiments.training import seeded
from mha_lib.masks import causal_mask

_INPUTS = (normal(2, 4, 8, seed=101), normal(2, 5, 8, seed=102), normal(2, 5, 6, seed=103))
_BY_HEADS = (normal(2, 3, 4, 8, seed=104), normal(2, 3, 5, 8, seed=105), normal(2, 3, 5, 7, seed=106))


def _at_work():
    return Fresh(lambda: nn.Dropout(0.5).train(), "nn.Dropout(0.5) in training mode")


dropout = Exercise(
    "dropout",
    signature="query key value dropout",
    expects="a pair (output, weights): the output mixed with the weights that went through dropout.",
    reference=attention_with,
    parts=first_of("output"),
    read=read.DROP,
    way=lambda query, key, value, module: attention_with.way(query, key, value, None, module),
    apply=lambda function, query, key, value, module: function(query, key, value, dropout=module),
    probes=[
        Probe("a dropout at work", (*_INPUTS, _at_work())),
        Probe("no dropout", (*_INPUTS, None)),
        Probe("a head axis in front", (*_BY_HEADS, _at_work())),
        Probe(
            "dropout in eval mode", (*_INPUTS, Fresh(lambda: nn.Dropout(0.5).eval(), "nn.Dropout(0.5) in eval mode"))
        ),
        Probe("another rate", (*_INPUTS, Fresh(lambda: nn.Dropout(0.2).train(), "nn.Dropout(0.2) in training mode"))),
    ],
    mistakes=DROPOUT,
)

_Q, _K, _V = normal(3, 4, 12, seed=111), normal(3, 6, 12, seed=112), normal(3, 6, 12, seed=113)
_X, _X_HEADS = normal(3, 5, 12, seed=114), normal(4, 5, 12, seed=115)
_ONE, _WIDE = normal(1, 5, 12, seed=116), normal(3, 5, 16, seed=117)
_CAUSAL = causal_mask(5).expand(3, 5, 5)

multi_head_attention = ClassExercise(
    "multi_head_attention",
    signature="d_model num_heads query key value mask",
    build_with="d_model num_heads",
    roles={role: ("d_model", "d_model") for role in ("w_q", "w_k", "w_v", "w_o")},
    expects="a class MultiHeadAttention(d_model, num_heads, dropout=0.0) whose call "
    "(query, key, value, mask=None) gives the output (B, T_q, d_model).",
    reference=layer_with,
    parts=first_of("output"),
    read=read.LAYER,
    # Whatever the weights of attention are, they sum to 1: only w_v and w_o matter here.
    narrow=Probe("the same value everywhere", (12, 4, _Q, _K, _V[:, :1].expand_as(_V), None)),
    probes=[
        Probe("self-attention", (12, 4, _X, _X, _X, None)),
        Probe("cross-attention", (12, 4, _Q, _K, _V, None)),
        Probe("a causal mask", (12, 4, _X, _X, _X, _CAUSAL)),
        Probe("a padding mask", (12, 4, _Q, _K, _V, padding(3, 6))),
        Probe("as many sentences as heads", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5))),
        Probe("padding and causal", (12, 4, _X, _X, _X, padding(3, 5) & _CAUSAL)),
        Probe("a mask that blocks nothing", (12, 4, _X, _X, _X, torch.ones(3, 5, 5, dtype=torch.bool))),
        Probe("one sentence", (12, 4, _ONE, _ONE, _ONE, None)),
        Probe("another number of heads", (12, 2, _Q, _K, _V, None)),
        Probe("as many features in a head as heads", (16, 4, _WIDE, _WIDE, _WIDE, None)),
        Probe("gradients", (12, 4, _Q, _K, _V, None), gradient=True, tolerance=1e-4),
        Probe(
            "a mask with a head axis", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5).unsqueeze(1)), judged=False
        ),
        Probe("one head", (12, 1, _Q, _K, _V, None), judged=False),
    ],
    mistakes=LAYER,
)


def _fresh_pair():
    return seeded(lambda: planted.Layer(4), 9)


def _layer_right(query, key, value):
    layer = _fresh_pair()
    output, _ = reference_attention(layer.w_q(query), layer.w_k(key), layer.w_v(value))
    return layer.w_o(output)


bug_layer = BugHunt(
    "bug_layer",
    signature="query key value",
    expects="the arguments (query, key, value), each (B, T, 4), of a call on which the layer gives a wrong output.",
    reference=_layer_right,
    buggy=lambda query, key, value: _fresh_pair()(query, key, value),
    read=read.LAYER,
    lucky=(
        Lucky(
            "hidden_by_self_attention",
            "Key and value are the same here, or nearly. Wherever one is taken for the other, nobody sees it.",
            lambda query, key, value: key.shape == value.shape and bool(torch.allclose(key, value)),
        ),
    ),
)
