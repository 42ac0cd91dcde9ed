"""The known mistakes in attention without heads or mask."""

import math

import torch
import torch.nn.functional as F

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.mistakes.signs import changes, rows_fall_short
from mha_lib.checks.recipe import attention_with, dot, softmax_by_hand, times


def _row_max(scores):
    return scores.amax(-1, keepdim=True)


def _row_sum(exp):
    return exp / exp.sum(-1, keepdim=True)


def _one_hot(scores):
    return F.one_hot(scores.argmax(-1), scores.size(-1)).to(scores.dtype)


def in_place_on_query(query, key, value):
    query /= math.sqrt(query.size(-1))
    return query @ key.transpose(-2, -1)


def in_place_on_key(query, key, value):
    key /= math.sqrt(key.size(-1))
    return query @ key.transpose(-2, -1)


ATTENTION = (
    Mistake(
        "att_weights_times_key",
        "Your weights average the keys. The keys only serve to be matched; what a token gives away is its value.",
        attention_with(mix=lambda w, v, k, q: w @ k),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_weights_times_query",
        "Your weights average the queries. What a token gives away is its value.",
        attention_with(mix=lambda w, v, k, q: w @ q),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_returns_scores_as_weights",
        "Your output is right, but the second part of the pair holds the scores, before the softmax.",
        attention_with(give=lambda o, w, s: (o, s)),
        *(attention_with(give=lambda o, w, s, low=low: (o, s.clamp_min(low))) for low in (-1e9, torch.finfo().min)),
        attention_with(
            scale=times(lambda q, k, v: 1.0),
            normalise=lambda s: s,
            mix=lambda s, v, k, q: (s / math.sqrt(q.size(-1))).softmax(-1) @ v,
        ),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_returns_log_weights",
        "Your output is right, but the second part of the pair holds logarithms of the weights.",
        attention_with(give=lambda o, w, s: (o, w.log())),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_over_queries",
        "Your softmax runs down the columns: the queries share out each key. "
        "Here every query shares out its attention over the keys, along its row.",
        attention_with(normalise=lambda s: s.softmax(-2)),
        attention_with(normalise=lambda s: s.clamp_min(-1e9).softmax(-2)),  # where a mask fills with a finite number
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_dim2_hardcoded",
        "Your softmax counts its axis from the front. With one more axis in front, for the heads, "
        "that number names the queries.",
        attention_with(normalise=lambda s: s.softmax(2)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_dim1_hardcoded",
        "Your softmax counts its axis from the front: axis 1 is not the axis of the keys here.",
        attention_with(normalise=lambda s: s.softmax(1)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_over_batch",
        "Your softmax runs over axis 0, the batch: the sentences share out one weight among them.",
        attention_with(normalise=lambda s: s.softmax(0)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_query_key_swapped",
        "Your scores have the keys as rows and the queries as columns: row i must belong to query i.",
        attention_with(dot=lambda q, k, v: k @ q.transpose(-2, -1)),
        read=read.DOT,
    ),
    Mistake(
        "att_weights_transposed",
        "You turn the weights over before they meet the values: row i must mix the values for query i.",
        attention_with(mix=lambda w, v, k, q: w.transpose(-2, -1) @ v),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_normalise_by_sum",
        "You divide the scores by their sum. Scores may be negative or sum to nearly 0; "
        "the exponential comes first and makes them all positive.",
        attention_with(normalise=lambda s: s / s.sum(-1, keepdim=True)),
        attention_with(normalise=lambda s: s / s.abs().sum(-1, keepdim=True)),
        attention_with(normalise=lambda s: F.normalize(s, dim=-1)),
        attention_with(normalise=lambda s: s.relu() / s.relu().sum(-1, keepdim=True)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_no_softmax",
        "There is no softmax: the raw scores mix the values, and no row sums to 1.",
        attention_with(normalise=lambda s: s),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_log_softmax",
        "You mix with the logarithms of the weights: they are negative and do not sum to 1.",
        attention_with(normalise=lambda s: s.log_softmax(-1)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_twice",
        "The softmax is applied twice: the second one flattens the weights of the first.",
        attention_with(normalise=lambda s: s.softmax(-1).softmax(-1)),
        attention_with(mix=lambda w, v, k, q: w.softmax(-1) @ v),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_sigmoid",
        "A sigmoid squeezes each score alone: the weights of a row do not compete and do not sum to 1.",
        attention_with(normalise=torch.sigmoid),
        attention_with(normalise=lambda s: s.sigmoid() / s.sigmoid().sum(-1, keepdim=True)),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_hard_max",
        "Each query takes the value of its best key alone. A softmax mixes all values, the best one most.",
        attention_with(normalise=_one_hot),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_negated_scores",
        "The sign of your scores is turned: the worst match gets the largest weight.",
        attention_with(dot=lambda q, k, v: -dot(q, k, v)),
        read=read.DOT,
    ),
    Mistake(
        "att_distance",
        "You compare by distance. A score is a dot product: large where two vectors point the same way.",
        attention_with(dot=lambda q, k, v: -torch.cdist(q, k)),
        attention_with(dot=lambda q, k, v: -torch.cdist(q, k), scale=times(lambda q, k, v: 1.0)),
        attention_with(dot=lambda q, k, v: torch.cdist(q, k)),
        attention_with(dot=lambda q, k, v: -(torch.cdist(q, k) ** 2)),
        read=read.DOT,
    ),
    Mistake(
        "att_always_causal",
        "You block the future: no query sees a later key. No mask is asked for here.",
        attention_with(
            normalise=lambda s: s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf).softmax(-1)
        ),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_normed_output",
        "Your output is normalised after the mixture. The weighted average is the result, as it is.",
        attention_with(mix=lambda w, v, k, q: F.layer_norm(w @ v, v.shape[-1:])),
        attention_with(mix=lambda w, v, k, q: F.normalize(w @ v, dim=-1)),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_cosine",
        "You compare directions alone: query or key is divided by its length, which no score here asks for.",
        *(
            attention_with(
                dot=lambda q, k, v, s=s: (
                    F.normalize(q, dim=-1)
                    @ F.normalize(k, dim=-1).transpose(-2, -1)
                    * (1.0 if s is None else q.size(-1) ** s)
                )
            )
            for s in (None, -0.5)
        ),
        read=read.DOT,
    ),
    Mistake(
        "att_exp_plus_epsilon",
        "Something is added to the denominator of your softmax, so no row sums to 1.",
        attention_with(normalise=softmax_by_hand(_row_max, lambda e: e / (1 + e.sum(-1, keepdim=True)))),
        attention_with(normalise=softmax_by_hand(lambda s: 0.0, lambda e: e / (1 + e.sum(-1, keepdim=True)))),
        Sign(rows_fall_short),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_global_max_underflow",
        "Your softmax subtracts the largest score of the whole tensor. A row far below it becomes 0/0, "
        "which is NaN: each row needs its own maximum.",
        attention_with(normalise=softmax_by_hand(lambda s: s.max(), _row_sum)),
        attention_with(normalise=softmax_by_hand(lambda s: s.amax((-2, -1), keepdim=True), _row_sum)),
        attention_with(normalise=softmax_by_hand(lambda s: s.amax(-2, keepdim=True), _row_sum)),
        read=read.STABLE,
    ),
    Mistake(
        "att_naive_exp_overflow",
        "Your softmax takes the exponential of the scores as they are: large ones overflow to infinity, "
        "and infinity over infinity is NaN.",
        attention_with(normalise=softmax_by_hand(lambda s: 0.0, _row_sum)),
        attention_with(normalise=softmax_by_hand(lambda s: s.mean(-1, keepdim=True), _row_sum)),
        read=read.STABLE,
    ),
    Mistake(
        "att_softmax_sum_without_keepdim",
        "Your softmax divides by sums that have lost their axis: they line up with the columns, "
        "so column j is divided by the sum of row j.",
        attention_with(normalise=softmax_by_hand(_row_max, lambda e: e / e.sum(-1))),
        attention_with(normalise=softmax_by_hand(lambda s: 0.0, lambda e: e / e.sum(-1))),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_softmax_whole_tensor",
        "All weights of the whole tensor together sum to 1. Every row must sum to 1 by itself.",
        attention_with(normalise=softmax_by_hand(lambda s: s.max(), lambda e: e / e.sum())),
        attention_with(normalise=softmax_by_hand(lambda s: 0.0, lambda e: e / e.sum())),
        attention_with(normalise=softmax_by_hand(lambda s: s.max(), lambda e: e / e.sum((-2, -1), keepdim=True))),
        read=read.SOFTMAX,
    ),
    Mistake(
        "att_scores_from_value",
        "Your scores compare the query with the values. The query is compared with the keys.",
        attention_with(dot=lambda q, k, v: dot(q, v, v)),
        read=read.DOT,
    ),
    Mistake(
        "att_key_value_swapped",
        "Keys and values have changed places on their way into the attention: the query is compared with the values, "
        "and the keys are mixed.",
        attention_with(dot=lambda q, k, v: dot(q, v, v), mix=lambda w, v, k, q: w @ k),
        read=read.PARTS,
    ),
    Mistake(
        "att_query_times_query",
        "Your scores compare the queries with each other; the keys never take part.",
        attention_with(dot=lambda q, k, v: dot(q, q, v)),
        read=read.DOT,
    ),
    Mistake(
        "att_key_times_key",
        "Your scores compare the keys with each other; the queries never take part.",
        attention_with(dot=lambda q, k, v: dot(k, k, v)),
        read=read.DOT,
    ),
    Mistake(
        "att_detached",
        "The numbers are right, but the gradient is cut off on the way (.data, .detach(), .item(), NumPy or no_grad): "
        "nothing in front of it could learn.",
        attention_with(normalise=lambda s: s.detach().softmax(-1)),
        attention_with(normalise=lambda s: s.softmax(-1).detach()),
        attention_with(give=lambda o, w, s: (o.detach(), w.detach())),
        attention_with(mix=lambda w, v, k, q: w @ v.detach()),
        attention_with(dot=lambda q, k, v: dot(q.detach(), k, v)),
        attention_with(dot=lambda q, k, v: dot(q, k.detach(), v)),
        read=read.PARTS,
    ),
    Mistake(
        "att_returns_weights_as_output",
        "The first part of your pair holds the weights. The output comes after them: the values, mixed.",
        attention_with(give=lambda o, w, s: (w, w)),
        attention_with(give=lambda o, w, s: (w, s)),
        attention_with(give=lambda o, w, s: (w, o * 0)),
        read=read.AVERAGE,
    ),
    Mistake(
        "att_return_order",
        "The pair is in the other order: output first, weights second.",
        attention_with(give=lambda o, w, s: (w, o)),
        read=read.PARTS,
    ),
    Mistake(
        "att_transpose_1_2_hardcoded",
        "Your transpose names axes 1 and 2. They are the last two only while there are three axes: "
        "with a head axis you swap heads and tokens.",
        attention_with(dot=lambda q, k, v: q @ k.transpose(1, 2)),
        attention_with(dot=lambda q, k, v: q @ k.permute(0, 2, 1)),
        read=read.DOT,
    ),
    Mistake(
        "att_transpose_all_axes",
        "Your transpose turns more than the last two axes around (.T and .t() see the batch too).",
        attention_with(dot=lambda q, k, v: q @ k.permute(*range(k.dim() - 1, -1, -1))),
        attention_with(dot=lambda q, k, v: q @ k.transpose(0, 1)),
        attention_with(dot=lambda q, k, v: q @ k.t()),
        read=read.DOT,
    ),
    Mistake(
        "att_key_reshaped",
        "You reshape the keys where they must be transposed: the shape is right, but the numbers land elsewhere.",
        attention_with(dot=lambda q, k, v: q @ k.reshape(*k.shape[:-2], k.size(-1), k.size(-2))),
        read=read.DOT,
    ),
    Mistake(
        "att_key_not_transposed",
        "You multiply query by key as they are: the last axis of the one meets the second last of the other, "
        "features meet tokens.",
        attention_with(dot=lambda q, k, v: q @ k),
        attention_with(dot=lambda q, k, v: q @ k, scale=times(lambda q, k, v: 1.0)),
        read=read.DOT,
    ),
    Mistake(
        "att_elementwise",
        "You multiply query and key cell by cell. A score is a sum over all features: a matrix product.",
        attention_with(dot=lambda q, k, v: q * k),
        read=read.DOT,
    ),
    Mistake(
        "att_inplace_scaling",
        "The division writes into the caller's own tensor. Called twice, the function gives two results, "
        "and autograd refuses it.",
        attention_with(dot=in_place_on_query, scale=times(lambda q, k, v: 1.0)),
        attention_with(dot=in_place_on_key, scale=times(lambda q, k, v: 1.0)),
        Sign(lambda trials: changes(trials, "query") or changes(trials, "key")),
        read=read.PARTS,
    ),
    Mistake(
        "att_changes_value",
        "Your code writes into the caller's value tensor.",
        Sign(lambda trials: changes(trials, "value")),
        read=read.PARTS,
    ),
    Mistake(
        "att_sums_values",
        "Your output adds the values up without the weights.",
        attention_with(mix=lambda w, v, k, q: torch.ones_like(w) @ v),
        attention_with(mix=lambda w, v, k, q: torch.ones_like(w) @ v / v.size(-2)),
        read=read.AVERAGE,
    ),
)
