"""The checks of chapter 4, and of chapter 5's sum: splitting, merging, attending by heads."""

from mha_lib.checks import planted, read
from mha_lib.checks.case import Probe
from mha_lib.checks.compare import one_tensor, output_and_weights
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered, padding
from mha_lib.checks.mistakes.heads import head_mistakes
from mha_lib.checks.mistakes.loop import LOOP, loop
from mha_lib.checks.mistakes.splitting import MERGE, SPLIT, SUM, sum_of, terms
from mha_lib.checks.recipe import heads_with
from mha_lib.heads import merge_heads as reference_merge
from mha_lib.heads import split_heads as reference_split
from mha_lib.masks import causal_mask


def _cells(label, *shape, heads=None):
    args = (numbered(*shape),) if heads is None else (numbered(*shape), heads)
    return Probe(label, args, cells=True)


def _layer_args(batch, length, d_model, num_heads, seed):
    weights = (normal(d_model, d_model, seed=seed + i, scale=d_model**-0.5) for i in (1, 2, 3))
    return (normal(batch, length, d_model, seed=seed), *weights, num_heads)


loop_of_heads = Exercise(
    "loop_of_heads",
    signature="x w_q w_k w_v num_heads",
    expects="one tensor (B, T, d_model): the outputs of all heads side by side, head 0 first.",
    reference=loop,
    way=lambda x, w_q, w_k, w_v, num_heads: heads_with.way(x @ w_q.T, x @ w_k.T, x @ w_v.T, num_heads),
    parts=one_tensor("output"),
    read=read.LOOP,
    probes=[
        Probe("4 heads of 3 features", _layer_args(2, 5, 12, 4, seed=200)),
        Probe("3 heads of 4 features", _layer_args(2, 5, 12, 3, seed=210)),
        Probe("as many sentences as heads", _layer_args(3, 5, 6, 3, seed=220)),
        Probe("as many features in a head as heads", _layer_args(2, 5, 16, 4, seed=230)),
        Probe("one head", _layer_args(2, 5, 6, 1, seed=240)),
        Probe("gradients", _layer_args(2, 5, 12, 4, seed=250), gradient=True, tolerance=1e-4),
    ],
    mistakes=LOOP,
)

split_heads = Exercise(
    "split_heads",
    signature="x num_heads",
    expects="one tensor (B, h, T, d_k): head i holds features i * d_k to (i + 1) * d_k of every token.",
    reference=reference_split,
    parts=one_tensor("heads"),
    read=read.CUT,
    probes=[
        _cells("2 sentences of 3 tokens, 4 heads", 2, 3, 8, heads=4),
        _cells("as many tokens as heads", 2, 4, 8, heads=4),
        _cells("as many sentences as heads", 4, 3, 8, heads=4),
        _cells("as many features in a head as heads", 2, 3, 16, heads=4),
        _cells("one head", 2, 3, 8, heads=1),
        _cells("one token", 2, 1, 8, heads=4),
        _cells("one sentence", 1, 3, 8, heads=4),
        _cells("heads of one feature", 2, 3, 4, heads=4),
        Probe("gradients", (normal(2, 3, 8, seed=81), 4), gradient=True, tolerance=1e-4),
    ],
    mistakes=SPLIT,
)

merge_heads = Exercise(
    "merge_heads",
    signature="x",
    expects="one tensor (B, T, h * d_k): for every token the features of head 0, then of head 1, and so on.",
    reference=reference_merge,
    parts=one_tensor("merged heads"),
    read=read.BACK,
    probes=[
        _cells("4 heads of 2 features, 3 tokens", 2, 4, 3, 2),
        _cells("as many tokens as heads", 2, 4, 4, 2),
        _cells("as many sentences as heads", 4, 4, 3, 2),
        _cells("as many features in a head as heads", 2, 4, 3, 4),
        _cells("as many features in a head as tokens", 2, 4, 3, 3),
        _cells("one head", 2, 1, 3, 8),
        _cells("one token", 2, 4, 1, 2),
        _cells("one sentence", 1, 4, 3, 2),
        _cells("heads of one feature", 2, 4, 3, 1),
        Probe("gradients", (normal(2, 4, 3, 2, seed=82),), gradient=True, tolerance=1e-4),
    ],
    mistakes=MERGE,
)

_QUERY, _KEY, _VALUE = normal(3, 4, 12, seed=83), normal(3, 6, 12, seed=84), normal(3, 6, 12, seed=85)
_SELF = normal(4, 5, 12, seed=86)
_CAUSAL = causal_mask(5).expand(4, 5, 5)

heads_attention = Exercise(
    "heads_attention",
    signature="query key value num_heads mask",
    expects="a pair (output, weights): output (B, T_q, d_model) and weights (B, h, T_q, T_k), one table for each head.",
    reference=heads_with,
    parts=output_and_weights,
    read=read.LOOP,
    probes=[
        Probe("cross-attention with 4 heads", (_QUERY, _KEY, _VALUE, 4, None)),
        Probe("self-attention with 3 heads", (_SELF, _SELF, _SELF, 3, None)),
        Probe("one head", (_QUERY, _KEY, _VALUE, 1, None)),
        Probe("a padding mask", (_QUERY, _KEY, _VALUE, 4, padding(3, 6))),
        Probe("a causal mask", (_SELF, _SELF, _SELF, 3, _CAUSAL)),
        Probe("as many sentences as heads, with padding", (_SELF, _SELF, _SELF, 4, padding(4, 5))),
        Probe("padding and causal", (_SELF, _SELF, _SELF, 4, padding(4, 5) & _CAUSAL)),
        Probe("a mask with a head axis", (_SELF, _SELF, _SELF, 4, padding(4, 5).unsqueeze(1)), judged=False),
        Probe("gradients", (_QUERY, _KEY, _VALUE, 4, None), gradient=True, tolerance=1e-4),
    ],
    mistakes=head_mistakes(heads_with),
)


sum_over_heads = Exercise(
    "sum_over_heads",
    signature="heads weight",
    expects="one tensor (B, T, d_out): every head through its own block of the weight, added up.",
    reference=sum_of,
    way=lambda heads, weight: {"the terms of the heads": terms(heads, weight), "the output": sum_of(heads, weight)},
    parts=one_tensor("output"),
    read=read.SUM,
    probes=[
        Probe("4 heads of 3 features to 7", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92))),
        Probe("a square weight", (normal(2, 4, 5, 3, seed=93), normal(12, 12, seed=94))),
        Probe("as many tokens as heads", (normal(2, 4, 4, 3, seed=95), normal(12, 12, seed=96))),
        Probe("one head", (normal(2, 1, 5, 6, seed=97), normal(4, 6, seed=98))),
        Probe("gradients", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92)), gradient=True, tolerance=1e-4),
    ],
    mistakes=SUM,
)


def _by_heads(x, num_heads):
    return heads_with()(x, x, x, num_heads)[0]


bug_splitting = BugHunt(
    "bug_splitting",
    signature="x num_heads",
    expects="the arguments (x, num_heads) of a call on which the function gives a wrong output.",
    reference=_by_heads,
    buggy=planted.attention_by_heads,
    read=read.CUT,
    kinds={"num_heads": "count"},
    lucky=(
        Lucky("hidden_by_one_head", "With one head there is nothing to split.", lambda x, num_heads: num_heads == 1),
        Lucky(
            "hidden_by_one_token",
            "With one token a head cannot take anything from another.",
            lambda x, num_heads: x.size(1) == 1,
        ),
        Lucky(
            "hidden_by_equal_numbers",
            "All numbers are alike here: whichever a head takes, it is the same.",
            lambda x, num_heads: float(x.max() - x.min()) < 1e-3,
        ),
    ),
)
