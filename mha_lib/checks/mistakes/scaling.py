"""The known mistakes in the scaling of the scores."""

import math

import torch

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.mistakes.signs import errs_with, has_one_more_factor
from mha_lib.checks.recipe import attention_with, dot, times

SCALING = (
    Mistake(
        "scale_missing",
        "The scores are not scaled: with more features they grow, and the softmax puts nearly all weight on one key.",
        attention_with(scale=times(lambda q, k, v: 1.0)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_without_sqrt",
        "In all, your scores are divided by the number of features itself: once, or twice by its root. That is too "
        "much: the wider the vectors, the nearer to equal all weights come.",
        attention_with(scale=times(lambda q, k, v: 1 / q.size(-1))),
        read=read.SCALE,
    ),
    Mistake(
        "scale_multiplies",
        "You multiply by the square root where you must divide: large scores get larger still.",
        attention_with(scale=times(lambda q, k, v: q.size(-1) ** 0.5)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_multiplies_without_sqrt",
        "You multiply by the number of features: the scores get larger, not smaller.",
        attention_with(scale=times(lambda q, k, v: float(q.size(-1)))),
        read=read.SCALE,
    ),
    Mistake(
        "scale_applied_to_output",
        "You scale the output. The softmax has then already seen the unscaled scores, and the output shrinks.",
        attention_with(scale=times(lambda q, k, v: 1.0), mix=lambda w, v, k, q: w @ v / math.sqrt(q.size(-1))),
        attention_with(mix=lambda w, v, k, q: w @ v / math.sqrt(q.size(-1))),
        read=read.SCALE,
    ),
    Mistake(
        "scale_after_softmax",
        "You scale the weights, after the softmax: their rows no longer sum to 1.",
        attention_with(
            dot=lambda q, k, v: torch.cat([dot(q, k, v), q.new_full((*q.shape[:-1], 1), q.size(-1))], -1),
            scale=times(lambda q, k, v: 1.0),
            normalise=lambda s: s[..., :-1].softmax(-1) / s[..., -1:].sqrt(),
        ),
        read=read.SCALE,
    ),
    Mistake(
        "scale_twice",
        "The scale is applied twice: to query and key each, or to the inputs and again to the scores.",
        attention_with(scale=times(lambda q, k, v: q.size(-1) ** -1.5)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_quarter_once",
        "You scale one factor by the fourth root. The fourth root belongs on both query and key, "
        "the square root on one.",
        attention_with(scale=times(lambda q, k, v: q.size(-1) ** -0.25)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_hardcoded_8",
        "You divide by a number that stands in your code. It fits one width alone: the paper's 8 is the root of its "
        "64.",
        *(
            attention_with(scale=times(lambda q, k, v, c=c: 1 / c))
            for c in (8.0, 64.0, 16.0, math.sqrt(512), 512.0, 2.0, 4.0)
        ),
        read=read.SCALE,
    ),
    Mistake(
        "scale_integer_root",
        "You take a whole number for the root: it is right for 4, 9 or 16 features, and cut off for all others.",
        attention_with(scale=times(lambda q, k, v: 1 / math.isqrt(q.size(-1)))),
        read=read.SCALE,
    ),
    Mistake(
        "scale_times_a_number",
        "Your scores are the divided ones, multiplied by one more number that has no place there.",
        Sign(has_one_more_factor),
        read=read.SCALE,
    ),
    Mistake(
        "scale_by_dim1",
        "You take d_k from axis 1 counted from the front. With a batch that axis is the tokens, "
        "with heads it is the heads.",
        attention_with(scale=times(lambda q, k, v: k.size(1) ** -0.5)),
        attention_with(scale=times(lambda q, k, v: q.size(1) ** -0.5)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_by_seq_len",
        "You take the root of the number of tokens. The sum that makes a score runs over the features.",
        attention_with(scale=times(lambda q, k, v: k.size(-2) ** -0.5)),
        attention_with(scale=times(lambda q, k, v: q.size(-2) ** -0.5)),
        attention_with(scale=times(lambda q, k, v: 1 / k.size(-2))),
        read=read.SCALE,
    ),
    Mistake(
        "scale_by_value_width",
        "You take the width of the values. The sum that makes a score runs over the features of query and key.",
        attention_with(scale=times(lambda q, k, v: v.size(-1) ** -0.5)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_by_batch",
        "You take the size of axis 0, the batch, for the number of features.",
        attention_with(scale=times(lambda q, k, v: q.size(0) ** -0.5)),
        read=read.SCALE,
    ),
    Mistake(
        "scale_by_norm",
        "You divide by the length of the numbers in the input. The scale is fixed: it depends on the width alone.",
        attention_with(scale=lambda s, q, k, v: s / s.std()),
        attention_with(scale=lambda s, q, k, v: s / s.norm(dim=-1, keepdim=True)),
        attention_with(scale=lambda s, q, k, v: s / k.norm()),
        read=read.SCALE,
    ),
    Mistake(
        "scale_torch_sqrt_int",
        "torch.sqrt takes a tensor, and a size is a plain Python number.",
        attention_with(scale=times(lambda q, k, v: 1 / torch.sqrt(k.size(-1)))),
        Sign(lambda trials: errs_with(trials, "sqrt(): argument", "rsqrt(): argument")),
        read=read.SCALE,
    ),
)
