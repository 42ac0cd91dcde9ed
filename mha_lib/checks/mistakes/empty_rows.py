"""The known mistakes in masking after the softmax, and in rows without any allowed key."""

import math

import torch

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import read
from mha_lib.checks.case import Mistake
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import attention_with, clearing_with, on, softmax, softmax_by_hand

_DEAF = torch.finfo(torch.float32).min


def _divided_after(keep):
    def attention(query, key, value, mask):
        weights = keep(attention_with()(query, key, value)[1] * mask)
        return weights @ value, weights

    return attention


# Ways to make rows sum to 1 again.
_DIVIDED = (
    lambda w: w / w.sum(-1, keepdim=True),
    lambda w: (w / w.sum(-1, keepdim=True)).nan_to_num(0.0),
    lambda w: w / w.sum(-1, keepdim=True).clamp_min(1e-9),
    *(lambda w, low=low: w / (w.sum(-1, keepdim=True) + low) for low in (1e-12, 1e-9, 1e-8, 1e-6)),
)

UNDERFLOWS = Mistake(
    "mask_exp_underflows",
    "The exponential is taken of the scores as they are. Very low ones all become 0, and nothing is left to share "
    "out: the largest allowed score of the row must come off first.",
    *(attention_with(normalise=softmax_by_hand(lambda s: 0.0, divide)) for divide in _DIVIDED),
)


def _empty(mask):
    return ~(mask != 0).any(-1, keepdim=True)


def _opened(open):
    """Return the mimic that changes the mask of empty rows before it attends."""
    return lambda q, k, v, m: reference_attention(q, k, v, m | (_empty(m) & open(q.size(-2), k.size(-2))))


def _kept_after(keep):
    """Return the mimic that fills right and clears wrong: keep(weights, mask)."""

    def attention(query, key, value, mask):
        weights = keep(attention_with(hide=lambda s, m: s.masked_fill(m == 0, _DEAF))(query, key, value, mask)[1], mask)
        return weights @ value, weights

    return attention


def _exp_times_mask(divide):
    def attention(query, key, value, mask):
        weights = divide((query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).exp() * mask)
        return weights @ value, weights

    return attention


def _half_cleared(output: bool):
    def attention(query, key, value, mask):
        even = attention_with(hide=lambda s, m: s.masked_fill(m == 0, _DEAF))(query, key, value, mask)
        right = reference_attention(query, key, value, mask)
        return (right[0], even[1]) if output else (even[0], right[1])

    return attention


BLOCKED_ROWS = (
    Mistake(
        "rows_nan",
        "Where every key of a row is blocked, your row is NaN: minus infinity everywhere makes 0/0.",
        clearing_with(normalise=softmax),
    ),
    Mistake(
        "rows_even",
        "A row without any allowed key shares out its attention evenly, over keys that are all blocked.",
        *(clearing_with(hide=lambda s, m, f=f: s.masked_fill(m == 0, f)) for f in (-1e9, -1e10, -1e30, _DEAF)),
        *(clearing_with(hide=lambda s, m, f=f: torch.where(m == 0, f, s)) for f in (-1e9, _DEAF)),
    ),
    Mistake(
        "rows_weights_left",
        "Your output of an empty row is 0, but its weights are not.",
        _half_cleared(output=True),
        lambda q, k, v, m: (reference_attention(q, k, v, m)[0], attention_with()(q, k, v, m)[1]),
        lambda q, k, v, m: ((right := attention_with()(q, k, v, m))[0].nan_to_num(0.0), right[1]),
    ),
    Mistake(
        "rows_output_left",
        "The weights of an empty row are 0, but its output was mixed before you cleared them.",
        _half_cleared(output=False),
        lambda q, k, v, m: (attention_with()(q, k, v, m)[0], reference_attention(q, k, v, m)[1]),
    ),
    Mistake(
        "rows_gradient_nan",
        "The numbers are right, but the gradient is NaN: a NaN arises on the way and is covered up afterwards.",
        clearing_with(hide=lambda s, m: s + torch.zeros_like(s).masked_fill(m == 0, -math.inf)),
        clearing_with(hide=lambda s, m: s + torch.where(m != 0, 0.0, -math.inf)),
    ),
    Mistake(
        "rows_see_themselves",
        "You let an empty row see a key that its mask blocks: itself, or the first.",
        _opened(lambda rows, columns: torch.eye(rows, columns, dtype=torch.bool)),
        _opened(lambda rows, columns: torch.arange(columns) == 0),
    ),
    Mistake(
        "rows_see_everything",
        "For an empty row you lift the mask: it sees every key.",
        _opened(lambda rows, columns: torch.ones(rows, columns, dtype=torch.bool)),
    ),
    Mistake(
        "rows_masked_after_softmax",
        "Your softmax runs over all keys, and the mask comes after it. A large score behind the mask then takes "
        "the weight of the whole row.",
        *(_divided_after(divide) for divide in _DIVIDED),
    ),
    Mistake(
        "rows_exp_of_scores",
        "The exponential is taken of the scores as they are: a large one behind the mask becomes infinite, very low "
        "ones all "
        "become 0. The largest score of the row must come off first.",
        *(_exp_times_mask(divide) for divide in _DIVIDED),
    ),
    Mistake(
        "rows_clearing_inverted",
        "You clear the cells that are allowed, and keep those that are blocked.",
        _kept_after(lambda w, m: w.masked_fill(m, 0.0)),
    ),
    Mistake(
        "rows_cleared_if_any",
        "You clear every row in which some key is blocked. Only a row whose keys are all blocked is empty.",
        _kept_after(lambda w, m: w * m.all(-1, keepdim=True)),
    ),
    Mistake(
        "rows_of_keys",
        "You ask for each key whether any query sees it. The question is asked of each query, along its row.",
        _kept_after(lambda w, m: w * m.any(-2, keepdim=True)),
    ),
    Mistake(
        "rows_all_cleared",
        "One empty row makes you clear everything. The other rows keep their weights.",
        _kept_after(lambda w, m: torch.zeros_like(w) if bool(_empty(m).any()) else w),
    ),
    Mistake(
        "rows_mask_not_shared_out",
        "You set weights to 0 after the softmax. The empty rows are right, but in all others weight is lost.",
        _divided_after(lambda w: w),
    ),
    *on(clearing_with, MASKING, without=("mask_tilde_on_int", "mask_fill_minus_1e_minus_9")),
    *on(clearing_with, SCALING),
    *on(
        clearing_with,
        tuple(m for m in ATTENTION if m.read != read.STABLE),
        without=("att_softmax_over_queries", "att_scores_from_value", "att_elementwise"),  # others give the same here
    ),
)
