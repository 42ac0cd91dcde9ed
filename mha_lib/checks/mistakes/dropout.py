"""The known mistakes in dropout on the weights."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from mha_lib.checks import read
from mha_lib.checks.case import Mistake
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import attention_with


def _drop(x, dropout):
    return x if dropout is None else dropout(x)


def _dropping(on):
    """Return attention that drops elsewhere: on(query, key, value, dropout)."""
    return lambda query, key, value, mask=None, dropout=None: on(query, key, value, dropout)


def _attend(query, key, value):
    return attention_with()(query, key, value)


# What shows in the second part of the pair, which may be either kind of weights here, or in gradients.
_UNSEEN = ("att_returns_scores_as_weights", "att_returns_log_weights", "att_detached")

DROPOUT = (
    Mistake(
        "dropout_not_applied",
        "The dropout is given, but takes no part in the output: it is never called, called on something that the "
        "output "
        "does not use, or switched to eval mode.",
        attention_with(drop=lambda w, d: w),
    ),
    Mistake(
        "dropout_on_scores",
        "Your dropout acts before the softmax. A score of 0 is not a weight of 0.",
        _dropping(lambda q, k, v, d: (_drop(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), d).softmax(-1) @ v, None)),
        _dropping(
            lambda q, k, v, d: ((_drop(q @ k.transpose(-2, -1), d) / math.sqrt(q.size(-1))).softmax(-1) @ v, None)
        ),
    ),
    Mistake(
        "dropout_on_output",
        "Your dropout acts on the output. Here it acts on the weights, between softmax and mixture.",
        _dropping(lambda q, k, v, d: (_drop(_attend(q, k, v)[0], d), None)),
    ),
    Mistake(
        "dropout_on_values",
        "Your dropout acts on the values. Here it acts on the weights.",
        _dropping(lambda q, k, v, d: _attend(q, k, _drop(v, d))),
    ),
    Mistake(
        "dropout_on_inputs",
        "Your dropout acts on the queries or keys. Here it acts on the weights.",
        _dropping(lambda q, k, v, d: _attend(_drop(q, d), k, v)),
        _dropping(lambda q, k, v, d: _attend(q, _drop(k, d), v)),
    ),
    Mistake(
        "dropout_twice",
        "Your dropout is applied twice.",
        attention_with(drop=lambda w, d: w if d is None else d(d(w))),
    ),
    Mistake(
        "dropout_renormalised",
        "After the dropout you make the rows sum to 1 again. Dropout has already enlarged what it left.",
        attention_with(drop=lambda w, d: w if d is None else (x := d(w)) / x.sum(-1, keepdim=True)),
        attention_with(drop=lambda w, d: w if d is None else d(w).softmax(-1)),
    ),
    Mistake(
        "dropout_required",
        "Without a dropout your function raises. None means: drop nothing.",
        attention_with(drop=lambda w, d: d(w)),
    ),
    Mistake(
        "dropout_of_its_own",
        "You drop with a dropout of your own. The one that is given knows its rate and whether training is on.",
        attention_with(drop=lambda w, d: w if d is None else F.dropout(w, d.p)),
        attention_with(drop=lambda w, d: w if d is None else nn.Dropout(d.p)(w)),
        *(attention_with(drop=lambda w, d, p=p: w if d is None else F.dropout(w, p)) for p in (0.1, 0.5)),
    ),
    Mistake(
        "dropout_in_two_places",
        "Your dropout acts on the weights, and again on the output. Here it acts on the weights alone.",
        _dropping(lambda q, k, v, d: (_drop(_drop(_attend(q, k, v)[1], d) @ v, d), None)),
    ),
    Mistake(
        "dropout_condition_turned",
        "Your condition is turned around: you drop where no dropout is given, and not where there is one.",
        attention_with(drop=lambda w, d: d(w) if d is None else w),
    ),
    Mistake(
        "dropout_rate_only",
        "The weights are multiplied with a number made of the rate. Nothing is dropped by chance: call the dropout.",
        *(
            attention_with(drop=lambda w, d, of=of, on=on: w * of(d.p) if d is not None and (on or d.training) else w)
            for on in (True, False)
            for of in (lambda p: 1 - p, lambda p: p, lambda p: 1 / (1 - p))
        ),
    ),
    Mistake(
        "dropout_rate_turned",
        "You keep the share that should be dropped, and drop the rest.",
        attention_with(
            drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) < d.p).float() / (1 - d.p)
        ),
        attention_with(
            drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) < d.p).float() / d.p
        ),
    ),
    Mistake(
        "dropout_by_hand_without_rescale",
        "What is left is not enlarged as the dropout does it.",
        attention_with(drop=lambda w, d: w if d is None else w * (d(w) != 0)),
        attention_with(drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) > d.p)),
        attention_with(drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) >= d.p).float()),
    ),
    *SCALING,
    *(m for m in ATTENTION if m.read != read.STABLE and m.id not in _UNSEEN),
)
