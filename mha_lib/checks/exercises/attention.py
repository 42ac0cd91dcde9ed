"""The checks of chapter 1: scores, softmax, attention and a head with projections."""

import math

import torch
import torch.nn.functional as F

from mha_lib.checks import read
from mha_lib.checks.case import ALWAYS, Law, Mistake, Probe, Sign
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.compare import one_tensor, output_and_weights
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.mistakes.signs import only_gradients_missing
from mha_lib.checks.mistakes.softmax import SOFTMAX_ROWS
from mha_lib.checks.recipe import attention_with, linear, on, single_head_with, times

# Sizes that differ pairwise: no axis can stand in for another.
THREE_AXES = (normal(2, 3, 4, seed=1), normal(2, 5, 4, seed=2), normal(2, 5, 6, seed=3))
FOUR_AXES = (normal(2, 3, 4, 8, seed=4), normal(2, 3, 5, 8, seed=5), normal(2, 3, 5, 7, seed=6))
SQUARE = (normal(2, 4, 4, seed=7), normal(2, 4, 4, seed=8), normal(2, 4, 4, seed=9))
FOUR_SQUARE = (normal(2, 4, 4, 4, seed=27), normal(2, 4, 4, 4, seed=28), normal(2, 4, 4, 4, seed=29))
TWO_AXES = (normal(4, 8, seed=10), normal(6, 8, seed=11), normal(6, 8, seed=12))
LARGE = (normal(2, 5, 8, seed=13, scale=40), normal(2, 5, 8, seed=14, scale=40), normal(2, 5, 8, seed=15))
_steps = torch.tensor([200.0, 1.0, -200.0, 30.0, -3.0]).reshape(1, 5, 1)
SPREAD = (_steps.expand(1, 5, 4).clone(), normal(1, 5, 4, seed=16).abs() + 0.5, normal(1, 5, 4, seed=17))

ATTENTION_PROBES = (
    Probe("3 queries over 5 keys", THREE_AXES),
    Probe("a head axis in front", FOUR_AXES),
    Probe("as many tokens as features", SQUARE),
    Probe("no batch axis", TWO_AXES),
    Probe("large scores", LARGE),
    Probe("rows of very different size", SPREAD),
    Probe("one sentence of one query", (normal(1, 1, 4, seed=35), normal(1, 3, 4, seed=36), normal(1, 3, 6, seed=37))),
    Probe("16 features", (normal(2, 3, 16, seed=38), normal(2, 4, 16, seed=39), normal(2, 4, 5, seed=40))),
    Probe("gradients", THREE_AXES, gradient=True, tolerance=1e-4),
    Probe("heads, tokens and features alike", FOUR_SQUARE, judged=False),
)


def _scores(query, key):
    return query @ key.transpose(-2, -1)


def _scaled(query, key):
    return _scores(query, key) / math.sqrt(query.size(-1))


scores = Exercise(
    "scores",
    signature="query key",
    expects="one tensor (..., T_q, T_k): the dot product of every query with every key.",
    reference=_scores,
    way=lambda query, key: {"the dot products": _scores(query, key)},
    parts=one_tensor("scores"),
    read=read.DOT,
    probes=[
        Probe("3 queries over 5 keys", THREE_AXES[:2]),
        Probe("a head axis in front", FOUR_AXES[:2]),
        Probe("as many tokens as features", SQUARE[:2]),
        Probe("no batch axis", TWO_AXES[:2]),
        Probe("one sentence of one query", (normal(1, 1, 4, seed=35), normal(1, 3, 4, seed=36))),
        Probe("gradients", THREE_AXES[:2], gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "scores_swapped",
            "The keys are your rows and the queries your columns: row i must hold what query i scores.",
            lambda q, k: k @ q.transpose(-2, -1),
        ),
        Mistake(
            "scores_key_not_transposed",
            "You multiply query by key as they are: features meet tokens. Where the sizes happen to be equal, "
            "nothing complains.",
            lambda q, k: q @ k,
        ),
        Mistake(
            "scores_transpose_counts_from_front",
            "Your transpose names its axes from the front. They are the last two only while there are three axes.",
            lambda q, k: q @ k.transpose(1, 2),
            lambda q, k: q @ k.permute(0, 2, 1),
            lambda q, k: torch.bmm(q, k.transpose(1, 2)),
        ),
        Mistake(
            "scores_transpose_all_axes",
            "Your transpose turns more than the last two axes around: .T and .t() see the batch too.",
            lambda q, k: q @ k.permute(*range(k.dim() - 1, -1, -1)),
            lambda q, k: q @ k.transpose(0, 1),
            lambda q, k: q @ k.t(),
        ),
        Mistake(
            "scores_key_reshaped",
            "You reshape the keys where they must be transposed: the shape is right, the numbers land elsewhere.",
            lambda q, k: q @ k.reshape(*k.shape[:-2], k.size(-1), k.size(-2)),
        ),
        Mistake(
            "scores_scaled",
            "Your scores are divided already, by the width or its root. Here the plain dot products are asked for.",
            lambda q, k: _scaled(q, k),
            lambda q, k: q @ k.transpose(-2, -1) / q.size(-1),
        ),
        Mistake(
            "scores_distance",
            "You measure distances. A score is a dot product: large where two vectors point the same way.",
            lambda q, k: torch.cdist(q, k),
            lambda q, k: -torch.cdist(q, k),
            lambda q, k: -(torch.cdist(q, k) ** 2),
            lambda q, k: torch.cdist(q, k) ** 2,
        ),
        Mistake(
            "scores_elementwise",
            "You multiply cell by cell. A score sums over all features of one query and one key.",
            lambda q, k: q * k,
            lambda q, k: (q * k).sum(-1),
        ),
        Mistake(
            "scores_product_of_sums",
            "You add up the features of each vector and multiply the sums. A score multiplies feature by feature, and "
            "adds then.",
            lambda q, k: q.sum(-1, keepdim=True) * k.sum(-1).unsqueeze(-2),
        ),
        Mistake(
            "scores_across_sentences",
            "Your queries meet the keys of all sentences. A sentence keeps to its own keys.",
            lambda q, k: torch.tensordot(q, k, dims=([-1], [-1])),
            lambda q, k: q.flatten(0, -2) @ k.flatten(0, -2).T,
        ),
        Mistake(
            "scores_of_one_sentence",
            "You take the keys of one sentence for all, or give the scores of one sentence alone.",
            lambda q, k: q @ k[:1].transpose(-2, -1),
            lambda q, k: _scores(q[0], k[0]),
        ),
        Mistake(
            "scores_softmax",
            "You already turned the scores into weights. Here the plain dot products are asked for.",
            lambda q, k: _scores(q, k).softmax(-1),
            lambda q, k: _scaled(q, k).softmax(-1),
        ),
        Mistake(
            "scores_one_input",
            "One of the two inputs takes no part: every query must meet every key.",
            lambda q, k: _scores(q, q),
            lambda q, k: _scores(k, k),
        ),
        Mistake(
            "scores_cosine",
            "You divide by the lengths of the vectors: that is the cosine. Here the plain dot products are asked for.",
            lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1),
        ),
        Mistake(
            "scores_summed_over_batch",
            "Your sum runs over the batch too: sentences are mixed with one another.",
            lambda q, k: torch.einsum("...qd,...kd->qk", q, k),
        ),
        Mistake(
            "scores_detached",
            "The numbers are right, but the gradient is cut off on the way: nothing in front of it could learn.",
            Sign(only_gradients_missing),
        ),
    ],
)


def _softmax_rows(scores):
    return scores.softmax(-1)


softmax_rows = Exercise(
    "softmax_rows",
    signature="scores",
    expects="one tensor of the shape of the scores (..., T_q, T_k), in which every row sums to 1.",
    reference=_softmax_rows,
    way=lambda scores: {"the weights": _softmax_rows(scores)},
    parts=one_tensor("weights"),
    read=read.SOFTMAX,
    probes=[
        Probe("3 rows of 5", (normal(2, 3, 5, seed=21),)),
        Probe("a head axis in front", (normal(2, 3, 4, 6, seed=22),)),
        Probe("a square table", (normal(2, 4, 4, seed=23),)),
        Probe("no batch axis", (normal(4, 6, seed=24),)),
        Probe("gradients", (normal(2, 3, 5, seed=25),), gradient=True, tolerance=1e-4),
    ],
    mistakes=SOFTMAX_ROWS,
)


def _to_read_in_chapter_1(mistake):
    """Point to chapter 1 even where a later chapter says more."""
    return mistake.at(
        mistake.read if mistake.read.chapter == 1 else read.SOFTMAX if mistake.read == read.STABLE else read.DOT
    )


attention = Exercise(
    "attention",
    signature="query key value",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k).",
    reference=attention_with,
    parts=output_and_weights,
    read=read.AVERAGE,
    probes=ATTENTION_PROBES,
    mistakes=[_to_read_in_chapter_1(m) for m in ATTENTION + SCALING],
)


def _fed(*order):
    """Return a head whose projections get the inputs of these numbers."""
    return single_head_with(feed=lambda q, k, v: tuple((q, k, v)[i] for i in order))


def _through(*roles):
    return single_head_with(through=lambda: roles)


def _activated(activation):
    return single_head_with(project=lambda weights, role, x: activation(linear(weights, role, x)))


def _by_d_model(weights_of, d_model, d_k, *inputs):
    return single_head_with(scale=times(lambda q, k, v: d_model**-0.5))(weights_of, d_model, d_k, *inputs)


def _shared(specimen):
    module = specimen.build(6, 4)
    names = [n for n in ("w_q", "w_k", "w_v") if module is not None and hasattr(module, n)]
    if len({id(getattr(module, n)) for n in names}) == len(names):
        return None
    return {"seen on": "d_model = 6, d_k = 4", "yours": f"{', '.join(names)} are one object, or two of them are"}


ROLES = ("w_q", "w_k", "w_v")
_HEAD_INPUTS = (normal(2, 3, 6, seed=31), normal(2, 5, 6, seed=32), normal(2, 5, 6, seed=33))
_SELF_INPUT = normal(2, 5, 6, seed=34)

single_head = ClassExercise(
    "single_head",
    signature="d_model d_k query key value",
    build_with="d_model d_k",
    roles={role: ("d_k", "d_model") for role in ROLES},
    expects="a class SingleHeadAttention(d_model, d_k) whose call (query, key, value) gives "
    "a pair (output, weights): output (B, T_q, d_k) and weights (B, T_q, T_k).",
    reference=single_head_with,
    parts=output_and_weights,
    read=read.PROJECT,
    probes=[
        Probe("3 queries over 5 keys", (6, 4, *_HEAD_INPUTS)),
        Probe("self-attention", (6, 4, _SELF_INPUT, _SELF_INPUT, _SELF_INPUT)),
        Probe("another width", (6, 2, *_HEAD_INPUTS)),
        Probe("gradients", (6, 4, *_HEAD_INPUTS), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "head_scale_by_d_model",
            "You take the root of d_model. The sum that makes a score runs over the d_k features after the projection.",
            _by_d_model,
        ),
        Mistake(
            "head_one_projection_for_all",
            "Query, key and value go through fewer than three projections: one of the linears does the work of "
            "another.",
            *(_through(q, k, v) for q in ROLES for k in ROLES for v in ROLES if len({q, k, v}) < 3),
        ),
        Mistake(
            "head_projections_shared",
            "Two of your three linears are one and the same object: whatever one learns, the other learns too.",
            Law(_shared, ALWAYS),
        ),
        Mistake(
            "head_projections_swapped",
            "Each linear is used once, but not for what its name says.",
            *(
                _through(q, k, v)
                for q in ROLES
                for k in ROLES
                for v in ROLES
                if len({q, k, v}) == 3 and (q, k, v) != ROLES
            ),
        ),
        Mistake(
            "head_not_projected",
            "At least one of the three inputs goes into the attention as it came, without its projection.",
            _through("w_q", "w_k", None),
            _through(None, "w_k", "w_v"),
            _through("w_q", None, "w_v"),
            _through(None, None, "w_v"),
            _through(None, None, None),
        ),
        Mistake(
            "head_bias_left_out",
            "The biases of your linears take no part: the inputs meet the weights alone.",
            single_head_with(project=lambda weights, role, x: F.linear(x, weights[role][0])),
        ),
        Mistake(
            "head_activation",
            "There is an activation behind your projections. They are plain linear maps.",
            *map(_activated, (torch.relu, F.gelu, torch.tanh, torch.sigmoid)),
        ),
        Mistake(
            "head_wrong_input",
            "A projection, or two, is fed with the wrong input: with self-attention alone you would never see it.",
            *(_fed(*order) for order in ((0, 1, 1), (0, 0, 2), (0, 0, 0), (1, 1, 2), (0, 2, 2), (0, 2, 1), (1, 0, 2))),
        ),
        *on(single_head_with, ATTENTION + SCALING),
    ],
)
