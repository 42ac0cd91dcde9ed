"""The known mistakes in a softmax by hand, plain and stable."""

import torch
import torch.nn.functional as F

from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.mistakes.signs import only_gradients_missing, rows_fall_short


def _by_hand(scores, *dims, keepdim=True):
    exp = scores.exp()
    return exp / exp.sum(dims or None, keepdim=keepdim)


SOFTMAX_ROWS = (
    Mistake(
        "softmax_over_queries",
        "Your columns sum to 1, not your rows: the queries share out each key.",
        lambda s: s.softmax(-2),
    ),
    Mistake(
        "softmax_axis_counted_from_front",
        "Your axis is counted from the front: with another axis in front it is no longer that of the keys.",
        lambda s: s.softmax(2),
        lambda s: s.softmax(1),
        lambda s: s.softmax(0),
    ),
    Mistake(
        "softmax_whole_tensor",
        "Your numbers sum to 1 all together, or all those of a table. Every row must sum to 1 by itself.",
        lambda s: _by_hand(s),
        lambda s: _by_hand(s, -2, -1),
        lambda s: torch.stack([_by_hand(entry) for entry in s]),
    ),
    Mistake(
        "softmax_sum_without_keepdim",
        "The sums have lost their axis and line up with the columns: column j is divided by the sum of row j.",
        lambda s: s.exp() / s.exp().sum(-1),
    ),
    Mistake(
        "softmax_without_exp",
        "You divide the scores by their sum. Scores may be negative: the exponential must come first.",
        lambda s: s / s.sum(-1, keepdim=True),
        lambda s: s / s.abs().sum(-1, keepdim=True),
        lambda s: s.relu() / s.relu().sum(-1, keepdim=True),
    ),
    Mistake(
        "softmax_not_normalised",
        "You take the exponentials and stop there: no row sums to 1.",
        lambda s: s.exp(),
        lambda s: (s - s.amax(-1, keepdim=True)).exp(),
    ),
    Mistake(
        "softmax_mean",
        "You divide by the mean of the row, not by its sum: every row sums to its length.",
        lambda s: s.exp() / s.exp().mean(-1, keepdim=True),
    ),
    Mistake(
        "softmax_by_count",
        "You divide by the number of entries. The exponentials of a row are divided by their sum.",
        lambda s: s.exp() / s.size(-1),
    ),
    Mistake(
        "softmax_exp_of_sum",
        "You divide by the exponential of the sum of the scores. What counts is the sum of their exponentials.",
        lambda s: s.exp() / s.sum(-1, keepdim=True).exp(),
    ),
    Mistake(
        "softmax_by_length",
        "You divide by the length of the row, the root of the sum of squares. The plain sum is asked for.",
        lambda s: F.normalize(s.exp(), dim=-1),
    ),
    Mistake("softmax_log", "You return the logarithms of the weights: all negative.", lambda s: s.log_softmax(-1)),
    Mistake(
        "softmax_base_two",
        "You raise the wrong base to the scores: the softmax uses e.",
        lambda s: (2**s) / (2**s).sum(-1, keepdim=True),
        lambda s: (10**s) / (10**s).sum(-1, keepdim=True),
    ),
    Mistake(
        "softmax_squares",
        "You square the scores where the exponential belongs: a score of -2 would weigh as much as one of 2.",
        lambda s: s**2 / (s**2).sum(-1, keepdim=True),
    ),
    Mistake(
        "softmax_sigmoid",
        "A sigmoid squeezes each score alone; the weights of a row do not sum to 1.",
        lambda s: s.sigmoid(),
    ),
    Mistake(
        "softmax_negated",
        "The sign is turned: your largest score gets the smallest weight.",
        lambda s: (-s).softmax(-1),
    ),
    Mistake(
        "softmax_hard",
        "Only the largest score of a row gets a weight. A softmax gives every score its share.",
        lambda s: F.one_hot(s.argmax(-1), s.size(-1)).to(s.dtype),
    ),
    Mistake(
        "softmax_min_max",
        "You stretch each row from 0 to 1 and divide by its sum. A softmax takes the exponential of every score.",
        lambda s: (
            (n := (s - s.amin(-1, keepdim=True)) / (s.amax(-1, keepdim=True) - s.amin(-1, keepdim=True)))
            / n.sum(-1, keepdim=True)
        ),
        lambda s: (s - s.amin(-1, keepdim=True)) / (s.amax(-1, keepdim=True) - s.amin(-1, keepdim=True)),
    ),
    Mistake(
        "softmax_epsilon",
        "Something is added to your denominator: the proportions are right, but every row sums to less than 1.",
        lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True)),
        Sign(rows_fall_short),
    ),
    Mistake(
        "softmax_detached",
        "The numbers are right, but the gradient is cut off on the way: nothing in front of it could learn.",
        Sign(only_gradients_missing),
    ),
)


def _hand(scores, shift, dim=-1):
    exp = (scores - shift).exp()
    return exp / exp.sum(dim=dim, keepdim=True)


STABLE_SOFTMAX = (
    Mistake(
        "softmax_overflows",
        "Nothing is taken off the scores before the exponential, or not enough: large ones become infinite, "
        "and infinity over infinity is NaN.",
        lambda s: _hand(s, 0.0),
        lambda s: _hand(s, s.mean(-1, keepdim=True)),
        lambda s: _hand(s, s.amin(-1, keepdim=True)),
        lambda s: (s - s.exp().sum(-1, keepdim=True).log()).exp(),
        lambda s: _hand(s, s.median(-1, keepdim=True).values),
    ),
    Mistake(
        "softmax_more_than_max",
        "What you take off can be larger than the row's own maximum: in a row far below it every exponential is 0, "
        "and 0/0 is NaN.",
        lambda s: _hand(s, s.abs().amax(-1, keepdim=True)),
        lambda s: _hand(s, s.amax(-1, keepdim=True).clamp_min(0.0)),
    ),
    Mistake(
        "softmax_overflows_later",
        "In 64-bit floats large scores fit longer, but nothing is taken off: in the thousands they overflow as well.",
        lambda s: _hand(s.double(), 0.0).float(),
    ),
    Mistake(
        "softmax_max_of_a_part",
        "The maximum you take off leaves entries out. Where the largest score stands there, it overflows.",
        lambda s: _hand(s, s[..., 1:].amax(-1, keepdim=True)),
        lambda s: _hand(s, s[..., :-1].amax(-1, keepdim=True)),
    ),
    Mistake(
        "softmax_global_max",
        "You take off the maximum of the whole tensor. In a row far below it every exponential is 0, and 0/0 is NaN.",
        lambda s: _hand(s, s.max()),
        lambda s: _hand(s, s.amax((-2, -1), keepdim=True)),
    ),
    Mistake(
        "softmax_global_max_epsilon",
        "You take off the maximum of the whole tensor. In a row far below it every exponential is 0, and all weights "
        "of the row "
        "are 0 with it: a small number in the denominator hides only the NaN.",
        *(
            lambda s, low=low: (e := (s - s.max()).exp()) / (e.sum(-1, keepdim=True) + low)
            for low in (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-5)
        ),
        lambda s: (e := (s - s.max()).exp()) / e.sum(-1, keepdim=True).clamp_min(1e-12),
        lambda s: (e := (s - s.amax((-2, -1), keepdim=True)).exp()) / e.sum(-1, keepdim=True).clamp_min(1e-12),
    ),
    Mistake(
        "softmax_column_max",
        "The maximum you take off is that of another axis, so the entries of one row lose different amounts. "
        "The softmax runs along the row, and each row needs its own.",
        lambda s: _hand(s, s.amax(-2, keepdim=True)),
        lambda s: _hand(s, s.amax(0)),
        lambda s: _hand(s, s.amax(1, keepdim=True)),
    ),
    Mistake(
        "softmax_max_after_exp",
        "You take the maximum off behind the exponential. There it is too late: large scores have become infinite, "
        "and what is "
        "left is no exponential any more.",
        lambda s: (e := s.exp() - s.exp().amax(-1, keepdim=True)) / e.sum(-1, keepdim=True),
        lambda s: (e := s.exp()) / e.amax(-1, keepdim=True),
    ),
    Mistake(
        "softmax_adds_max",
        "You add the maximum where it must be taken off: large scores become larger still.",
        lambda s: _hand(s, -s.amax(-1, keepdim=True)),
    ),
    Mistake(
        "softmax_standardised",
        "You also divide by the spread of the row. That changes the weights; taking a number off does not.",
        lambda s: _hand((s - s.mean(-1, keepdim=True)) / s.std(-1, keepdim=True), 0.0),
        lambda s: _hand((s - s.amax(-1, keepdim=True)) / s.std(-1, keepdim=True), 0.0),
    ),
    Mistake(
        "softmax_whole_tensor",
        "Your numbers sum to 1 all together, or all those of a table. Every row must sum to 1 by itself.",
        lambda s: (e := (s - s.max()).exp()) / e.sum(),
        lambda s: torch.stack([(e := (entry - entry.max()).exp()) / e.sum() for entry in s]),
    ),
    Mistake(
        "softmax_max_without_keepdim",
        "The maxima have lost their axis: they line up with the columns instead of the rows.",
        lambda s: _hand(s, s.amax(-1)),
    ),
    Mistake(
        "softmax_clamped",
        "You cut the scores off at a limit. All scores beyond it become equal, so the weights are wrong.",
        *(lambda s, c=c: _hand(s.clamp(max=c), 0.0) for c in (10.0, 50.0, 80.0, 88.0)),
        *(lambda s, c=c: _hand(s.clamp(-c, c), 0.0) for c in (10.0, 50.0, 80.0, 88.0)),
    ),
    Mistake(
        "softmax_divided_by_max",
        "You divide by the maximum. That changes the weights; taking it off does not.",
        lambda s: (s / s.amax(-1, keepdim=True)).softmax(-1),
        lambda s: (s / s.abs().amax(-1, keepdim=True)).softmax(-1),
        lambda s: F.normalize(s, dim=-1).softmax(-1),
    ),
    Mistake(
        "softmax_over_queries",
        "Your columns sum to 1, not your rows.",
        lambda s: s.softmax(-2),
        lambda s: _hand(s, s.amax(-1, keepdim=True), dim=-2),
    ),
    Mistake(
        "softmax_axis_counted_from_front",
        "Your axis is counted from the front: with another axis in front it is no longer that of the keys.",
        lambda s: s.softmax(1),
        lambda s: s.softmax(2),
        lambda s: s.softmax(0),
    ),
    Mistake(
        "softmax_not_normalised",
        "You stop after the exponential: no row sums to 1.",
        lambda s: (s - s.amax(-1, keepdim=True)).exp(),
        lambda s: s.exp(),
    ),
    Mistake(
        "softmax_sum_without_keepdim",
        "The sums have lost their axis: column j is divided by the sum of row j.",
        lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / e.sum(-1),
    ),
    Mistake(
        "softmax_nan_papered_over",
        "You replace NaN afterwards. The row it stood in has lost its weights.",
        lambda s: _hand(s, 0.0).nan_to_num(0.0),
        lambda s: _hand(s, 0.0).nan_to_num(1.0),
        lambda s: _hand(s, s.max()).nan_to_num(0.0),
    ),
    Mistake(
        "softmax_epsilon",
        "Something is added to the denominator: the rows sum to less than 1.",
        lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / (1 + e.sum(-1, keepdim=True)),
    ),
    Mistake(
        "softmax_changes_scores",
        "Your code writes into the caller's scores.",
        Sign(lambda trials: any("scores" in t.seen.changed for t in trials)),
    ),
)
