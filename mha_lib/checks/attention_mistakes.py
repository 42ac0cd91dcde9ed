"""The known mistakes in attention and in its scaling, shared by every exercise that contains it."""

import math

import torch

from mha_lib.checks.engine import Mistake
from mha_lib.checks.variants import (
    attention_with,
    by_hand,
    in_place_on_key,
    in_place_on_query,
    scaled,
    scores_times,
)

DOT = "notebook 01, “A score is a dot product”"
SOFTMAX = "notebook 01, “Softmax turns a row of scores into weights”"
AVERAGE = "notebook 01, “The output is a weighted average”"
PARTS = "notebook 01, “One function”"
SCALE = "notebook 02, “Divide by the square root”"
STABLE = "notebook 02, “A softmax that does not overflow”"


def _row_max(scores):
    return scores.amax(-1, keepdim=True)


def _row_sum(exp):
    return exp / exp.sum(-1, keepdim=True)


def _one_hot(scores):
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.size(-1)).to(scores.dtype)


def _errs_with(trials, *words):
    """Say whether every error that was seen has one of the words in its text, and there is one."""
    texts = [str(t.seen.error) for t in trials if t.seen.error is not None]
    return bool(texts) and all(any(word in text for word in words) for text in texts)


def _changes(trials, name):
    return any(name in t.seen.changed for t in trials)


ATTENTION_MISTAKES = (
    Mistake(
        "att_weights_times_key",
        "Your weights average the keys. The keys only serve to be matched; what a token gives away is its value.",
        AVERAGE,
        (attention_with(mix=lambda w, v, k, q: w @ k),),
    ),
    Mistake(
        "att_weights_times_query",
        "Your weights average the queries. What a token gives away is its value.",
        AVERAGE,
        (attention_with(mix=lambda w, v, k, q: w @ q),),
    ),
    Mistake(
        "att_returns_scores_as_weights",
        "Your output is right, but the second part of the pair holds the scores, before the softmax.",
        SOFTMAX,
        (
            attention_with(give=lambda o, w, s: (o, s)),
            attention_with(
                scores=scores_times(lambda q, k: 1.0),
                normalise=lambda s: s,
                mix=lambda s, v, k, q: (s / math.sqrt(q.size(-1))).softmax(-1) @ v,
            ),
        ),
    ),
    Mistake(
        "att_returns_log_weights",
        "Your output is right, but the second part of the pair holds logarithms of the weights.",
        SOFTMAX,
        (attention_with(give=lambda o, w, s: (o, w.log())),),
    ),
    Mistake(
        "att_softmax_over_queries",
        "Your softmax runs down the columns: the queries share out each key. "
        "Here every query shares out its attention over the keys, along its row.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s.softmax(-2)),),
    ),
    Mistake(
        "att_softmax_dim2_hardcoded",
        "Your softmax counts its axis from the front. With one more axis in front, for the heads, "
        "that number names the queries.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s.softmax(2)),),
    ),
    Mistake(
        "att_softmax_dim1_hardcoded",
        "Your softmax counts its axis from the front: axis 1 is not the axis of the keys here.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s.softmax(1)),),
    ),
    Mistake(
        "att_softmax_over_batch",
        "Your softmax runs over axis 0, the batch: the sentences share out one weight among them.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s.softmax(0)),),
    ),
    Mistake(
        "att_query_key_swapped",
        "Your scores have the keys as rows and the queries as columns: row i must belong to query i.",
        DOT,
        (attention_with(scores=lambda q, k, v: k @ q.transpose(-2, -1) / math.sqrt(q.size(-1))),),
    ),
    Mistake(
        "att_weights_transposed",
        "You turn the weights over before they meet the values: row i must mix the values for query i.",
        AVERAGE,
        (attention_with(mix=lambda w, v, k, q: w.transpose(-2, -1) @ v),),
    ),
    Mistake(
        "att_normalise_by_sum",
        "You divide the scores by their sum. Scores may be negative or sum to nearly 0; "
        "the exponential comes first and makes them all positive.",
        SOFTMAX,
        (
            attention_with(normalise=lambda s: s / s.sum(-1, keepdim=True)),
            attention_with(normalise=lambda s: s / s.abs().sum(-1, keepdim=True)),
            attention_with(normalise=lambda s: torch.nn.functional.normalize(s, dim=-1)),
            attention_with(normalise=lambda s: s.relu() / s.relu().sum(-1, keepdim=True)),
        ),
    ),
    Mistake(
        "att_no_softmax",
        "There is no softmax: the raw scores mix the values, and no row sums to 1.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s),),
    ),
    Mistake(
        "att_log_softmax",
        "You mix with the logarithms of the weights: they are negative and do not sum to 1.",
        SOFTMAX,
        (attention_with(normalise=lambda s: s.log_softmax(-1)),),
    ),
    Mistake(
        "att_softmax_twice",
        "The softmax is applied twice: the second one flattens the weights of the first.",
        SOFTMAX,
        (
            attention_with(normalise=lambda s: s.softmax(-1).softmax(-1)),
            attention_with(mix=lambda w, v, k, q: w.softmax(-1) @ v),
        ),
    ),
    Mistake(
        "att_sigmoid",
        "A sigmoid squeezes each score alone: the weights of a row do not compete and do not sum to 1.",
        SOFTMAX,
        (
            attention_with(normalise=torch.sigmoid),
            attention_with(normalise=lambda s: s.sigmoid() / s.sigmoid().sum(-1, keepdim=True)),
        ),
    ),
    Mistake(
        "att_hard_max",
        "Each query takes the value of its best key alone. A softmax mixes all values, the best one most.",
        SOFTMAX,
        (attention_with(normalise=_one_hot),),
    ),
    Mistake(
        "att_negated_scores",
        "The sign of your scores is turned: the worst match gets the largest weight.",
        DOT,
        (attention_with(scores=lambda q, k, v: -scaled(q, k, v)),),
    ),
    Mistake(
        "att_cosine",
        "You compare directions alone: query or key is divided by its length, which no score here asks for.",
        DOT,
        tuple(
            attention_with(
                scores=lambda q, k, v, s=s: torch.nn.functional.normalize(q, dim=-1)
                @ torch.nn.functional.normalize(k, dim=-1).transpose(-2, -1)
                * (1.0 if s is None else q.size(-1) ** s)
            )
            for s in (None, -0.5)
        ),
    ),
    Mistake(
        "att_exp_plus_epsilon",
        "Something is added to the denominator of your softmax, so no row sums to 1.",
        SOFTMAX,
        (
            attention_with(normalise=by_hand(_row_max, lambda e: e / (1 + e.sum(-1, keepdim=True)))),
            attention_with(normalise=by_hand(lambda s: 0.0, lambda e: e / (1 + e.sum(-1, keepdim=True)))),
        ),
        sign=lambda trials: _rows_fall_short(trials),
    ),
    Mistake(
        "att_global_max_underflow",
        "Your softmax subtracts the largest score of the whole tensor. A row far below it becomes 0/0, "
        "which is NaN: each row needs its own maximum.",
        STABLE,
        (
            attention_with(normalise=by_hand(lambda s: s.max(), _row_sum)),
            attention_with(normalise=by_hand(lambda s: s.amax((-2, -1), keepdim=True), _row_sum)),
            attention_with(normalise=by_hand(lambda s: s.amax(-2, keepdim=True), _row_sum)),
        ),
    ),
    Mistake(
        "att_naive_exp_overflow",
        "Your softmax takes the exponential of the scores as they are: large ones overflow to infinity, "
        "and infinity over infinity is NaN.",
        STABLE,
        (
            attention_with(normalise=by_hand(lambda s: 0.0, _row_sum)),
            attention_with(normalise=by_hand(lambda s: s.mean(-1, keepdim=True), _row_sum)),
        ),
    ),
    Mistake(
        "att_softmax_sum_without_keepdim",
        "Your softmax divides by sums that have lost their axis: they line up with the columns, "
        "so row i is divided by the sum of another row.",
        SOFTMAX,
        (
            attention_with(normalise=by_hand(_row_max, lambda e: e / e.sum(-1))),
            attention_with(normalise=by_hand(lambda s: 0.0, lambda e: e / e.sum(-1))),
        ),
    ),
    Mistake(
        "att_softmax_whole_tensor",
        "All weights of the whole tensor together sum to 1. Every row must sum to 1 by itself.",
        SOFTMAX,
        (
            attention_with(normalise=by_hand(lambda s: s.max(), lambda e: e / e.sum())),
            attention_with(normalise=by_hand(lambda s: 0.0, lambda e: e / e.sum())),
            attention_with(
                normalise=by_hand(lambda s: s.max(), lambda e: e / e.sum((-2, -1), keepdim=True))
            ),
        ),
    ),
    Mistake(
        "att_scores_from_value",
        "Your scores compare the query with the values. The query is compared with the keys.",
        DOT,
        (attention_with(scores=lambda q, k, v: scaled(q, v, v)),),
    ),
    Mistake(
        "att_query_times_query",
        "Your scores compare the queries with each other; the keys never take part.",
        DOT,
        (attention_with(scores=lambda q, k, v: scaled(q, q, v)),),
    ),
    Mistake(
        "att_key_times_key",
        "Your scores compare the keys with each other; the queries never take part.",
        DOT,
        (attention_with(scores=lambda q, k, v: scaled(k, k, v)),),
    ),
    Mistake(
        "att_detached",
        "The numbers are right, but the gradient is cut off on the way (.data, .detach(), .item(), NumPy or no_grad): "
        "nothing in front of it could learn.",
        PARTS,
        (
            attention_with(normalise=lambda s: s.detach().softmax(-1)),
            attention_with(normalise=lambda s: s.softmax(-1).detach()),
            attention_with(give=lambda o, w, s: (o.detach(), w.detach())),
            attention_with(mix=lambda w, v, k, q: w @ v.detach()),
            attention_with(scores=lambda q, k, v: scaled(q.detach(), k, v)),
            attention_with(scores=lambda q, k, v: scaled(q, k.detach(), v)),
        ),
    ),
    Mistake(
        "att_returns_weights_as_output",
        "The first part of your pair holds the weights. The output comes after them: the values, mixed.",
        AVERAGE,
        (
            attention_with(give=lambda o, w, s: (w, w)),
            attention_with(give=lambda o, w, s: (w, s)),
            attention_with(give=lambda o, w, s: (w, o * 0)),
        ),
    ),
    Mistake(
        "att_return_order",
        "The pair is in the other order: output first, weights second.",
        PARTS,
        (attention_with(give=lambda o, w, s: (w, o)),),
    ),
    Mistake(
        "att_transpose_1_2_hardcoded",
        "Your transpose names axes 1 and 2. They are the last two only while there are three axes: "
        "with a head axis you swap heads and tokens.",
        DOT,
        (
            attention_with(scores=lambda q, k, v: q @ k.transpose(1, 2) / math.sqrt(q.size(-1))),
            attention_with(scores=lambda q, k, v: q @ k.permute(0, 2, 1) / math.sqrt(q.size(-1))),
        ),
    ),
    Mistake(
        "att_transpose_all_axes",
        "Your transpose turns more than the last two axes around (.T and .t() see the batch too).",
        DOT,
        (
            attention_with(scores=lambda q, k, v: q @ k.permute(*range(k.dim() - 1, -1, -1)) / math.sqrt(q.size(-1))),
            attention_with(scores=lambda q, k, v: q @ k.transpose(0, 1) / math.sqrt(q.size(-1))),
            attention_with(scores=lambda q, k, v: q @ k.t() / math.sqrt(q.size(-1))),
        ),
    ),
    Mistake(
        "att_key_reshaped",
        "You reshape the keys where they must be transposed: the shape is right, but the numbers land elsewhere.",
        DOT,
        (
            attention_with(
                scores=lambda q, k, v: q
                @ k.reshape(*k.shape[:-2], k.size(-1), k.size(-2))
                / math.sqrt(q.size(-1))
            ),
        ),
    ),
    Mistake(
        "att_key_not_transposed",
        "You multiply query by key as they are: the last axis of the one meets the second last of the other, "
        "features meet tokens.",
        DOT,
        (
            attention_with(scores=lambda q, k, v: q @ k / math.sqrt(q.size(-1))),
            attention_with(scores=lambda q, k, v: torch.matmul(q, k)),
        ),
    ),
    Mistake(
        "att_elementwise",
        "You multiply query and key cell by cell. A score is a sum over all features: a matrix product.",
        DOT,
        (attention_with(scores=lambda q, k, v: q * k / math.sqrt(q.size(-1))),),
    ),
    Mistake(
        "att_inplace_scaling",
        "The division writes into the caller's own tensor. Called twice, the function gives two results, "
        "and autograd refuses it.",
        PARTS,
        (attention_with(scores=in_place_on_query), attention_with(scores=in_place_on_key)),
        sign=lambda trials: _changes(trials, "query") or _changes(trials, "key"),
    ),
    Mistake(
        "att_changes_value",
        "Your code writes into the caller's value tensor.",
        PARTS,
        sign=lambda trials: _changes(trials, "value"),
    ),
    Mistake(
        "att_sums_values",
        "Your output adds the values up without the weights.",
        AVERAGE,
        (
            attention_with(mix=lambda w, v, k, q: torch.ones_like(w) @ v),
            attention_with(mix=lambda w, v, k, q: torch.ones_like(w) @ v / v.size(-2)),
        ),
    ),
)

SCALING_MISTAKES = (
    Mistake(
        "scale_missing",
        "The scores are not scaled: with more features they grow, and the softmax puts nearly all weight on one key.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: 1.0)),),
    ),
    Mistake(
        "scale_without_sqrt",
        "You divide by the number of features itself. That is too much: the scores shrink to nothing "
        "and all weights become nearly equal.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: 1 / q.size(-1))),),
    ),
    Mistake(
        "scale_multiplies",
        "You multiply by the square root where you must divide: large scores get larger still.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: q.size(-1) ** 0.5)),),
    ),
    Mistake(
        "scale_multiplies_without_sqrt",
        "You multiply by the number of features: the scores get larger, not smaller.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: float(q.size(-1)))),),
    ),
    Mistake(
        "scale_applied_to_output",
        "You scale the output. The softmax has then already seen the unscaled scores, and the output shrinks.",
        SCALE,
        (
            attention_with(
                scores=scores_times(lambda q, k: 1.0),
                mix=lambda w, v, k, q: w @ v / math.sqrt(q.size(-1)),
            ),
            attention_with(mix=lambda w, v, k, q: w @ v / math.sqrt(q.size(-1))),
        ),
    ),
    Mistake(
        "scale_after_softmax",
        "You scale the weights, after the softmax: their rows no longer sum to 1.",
        SCALE,
        (
            attention_with(
                scores=lambda q, k, v: torch.cat([q @ k.transpose(-2, -1), q.new_full((*q.shape[:-1], 1), q.size(-1))], -1),
                normalise=lambda s: s[..., :-1].softmax(-1) / s[..., -1:].sqrt(),
            ),
        ),
    ),
    Mistake(
        "scale_twice",
        "The scale is applied twice: to query and key each, or to the inputs and again to the scores.",
        SCALE,
        (attention_with(scores=lambda q, k, v: (q / math.sqrt(q.size(-1))) @ (k / math.sqrt(k.size(-1))).transpose(-2, -1) / math.sqrt(q.size(-1))),),
    ),
    Mistake(
        "scale_quarter_once",
        "You scale one factor by the fourth root. The fourth root belongs on both query and key, "
        "the square root on one.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: q.size(-1) ** -0.25)),),
    ),
    Mistake(
        "scale_hardcoded_8",
        "You divide by a number that stands in your code. It fits one width alone: the paper's 8 is the root of its 64.",
        SCALE,
        tuple(attention_with(scores=scores_times(lambda q, k, c=c: 1 / c)) for c in (8.0, 64.0, 16.0, math.sqrt(512), 512.0, 2.0, 4.0)),
    ),
    Mistake(
        "scale_by_dim1",
        "You take d_k from axis 1 counted from the front. With a batch that axis is the tokens, "
        "with heads it is the heads.",
        SCALE,
        (
            attention_with(scores=scores_times(lambda q, k: k.size(1) ** -0.5)),
            attention_with(scores=scores_times(lambda q, k: q.size(1) ** -0.5)),
        ),
    ),
    Mistake(
        "scale_by_seq_len",
        "You take the root of the number of tokens. The sum that makes a score runs over the features.",
        SCALE,
        (
            attention_with(scores=scores_times(lambda q, k: k.size(-2) ** -0.5)),
            attention_with(scores=scores_times(lambda q, k: q.size(-2) ** -0.5)),
            attention_with(scores=scores_times(lambda q, k: 1 / k.size(-2))),
        ),
    ),
    Mistake(
        "scale_by_value_width",
        "You take the width of the values. The sum that makes a score runs over the features of query and key.",
        SCALE,
        (attention_with(scores=lambda q, k, v: q @ k.transpose(-2, -1) / math.sqrt(v.size(-1))),),
    ),
    Mistake(
        "scale_by_batch",
        "You take the size of axis 0, the batch, for the number of features.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: q.size(0) ** -0.5)),),
    ),
    Mistake(
        "scale_by_norm",
        "You divide by the length of the numbers in the input. The scale is fixed: it depends on the width alone.",
        SCALE,
        (
            attention_with(scores=lambda q, k, v: (s := q @ k.transpose(-2, -1)) / s.std()),
            attention_with(scores=lambda q, k, v: (s := q @ k.transpose(-2, -1)) / s.norm(dim=-1, keepdim=True)),
            attention_with(scores=lambda q, k, v: q @ k.transpose(-2, -1) / k.norm()),
        ),
    ),
    Mistake(
        "scale_torch_sqrt_int",
        "torch.sqrt takes a tensor, and a size is a plain Python number.",
        SCALE,
        (attention_with(scores=scores_times(lambda q, k: 1 / torch.sqrt(k.size(-1)))),),
        sign=lambda trials: _errs_with(trials, "sqrt(): argument", "rsqrt(): argument"),
    ),
)


def _rows_fall_short(trials) -> bool:
    """Say whether every row of the weights sums to less than 1 with the right proportions."""
    sums = []
    for trial in trials:
        weights, want = trial.seen.parts.get("weights"), trial.want.parts.get("weights")
        if weights is None or want is None or weights.shape != want.shape:
            continue
        total = weights.detach().double().sum(-1, keepdim=True)
        if not torch.allclose(weights.double() / total, want.double(), atol=1e-4):
            return False
        sums.append(total)
    return bool(sums) and all((total < 1 - 1e-6).all() for total in sums)
