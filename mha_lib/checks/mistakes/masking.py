"""The known mistakes in hiding scores behind a mask."""

import math

import torch
import torch.nn.functional as F

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.mistakes.signs import changes
from mha_lib.checks.recipe import attention_with


def _fill_with(number):
    return lambda s, m: s.masked_fill(m == 0, number)


def _only_if(s, m):
    if m:
        s = s.masked_fill(m == 0, -math.inf)
    return s


def _after_softmax(keep):
    def attention(query, key, value, mask):
        weights = keep(attention_with()(query, key, value)[1], mask)
        return weights @ value, weights

    return attention


def _fills(trials) -> list[float]:
    """Work out the score that the blocked cells were given, from the weights alone."""
    found = []
    if any(trial.is_wrong and trial.seen.error is not None for trial in trials):
        return found
    for trial in trials:
        query, key, _, mask = trial.probe.args
        weights = trial.seen.parts.get("weights")
        if (
            weights is None
            or mask is None
            or trial.probe.gradient
            or trial.want.parts["weights"].shape != weights.shape
        ):
            continue
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).double()
        blocked = (mask == 0).expand_as(scores)
        log = weights.detach().double().log()
        for row in range(log[..., 0].numel()):
            w, s, b = (x.reshape(-1, x.size(-1))[row] for x in (log, scores, blocked))
            seen = ~b & w.isfinite() & (w > -20)
            hidden = b & w.isfinite() & (w > -20)
            if seen.any() and hidden.any():
                shift = (s - w)[seen]
                if shift.max() - shift.min() > 1e-2:
                    return []
                found += (w[hidden] + shift.mean()).tolist()
    return found


def _constant_fill(low, high):
    def sign(trials):
        fills = _fills(trials)
        return bool(fills) and max(fills) - min(fills) < 0.05 and low <= sum(fills) / len(fills) <= high

    return sign


MASKING = (
    Mistake(
        "mask_inverted",
        "You block where the mask is True. Here True means may attend.",
        attention_with(hide=lambda s, m: s.masked_fill(m != 0, -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill(m != 0, -1e9)),
        attention_with(hide=lambda s, m: s.masked_fill(m, -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill(m, -1e9)),
        attention_with(hide=lambda s, m: s.masked_fill(m != 0, torch.finfo(s.dtype).min)),
        attention_with(hide=lambda s, m: s + m.to(s.dtype) * -1e9),
        lambda q, k, v, m: (
            F.scaled_dot_product_attention(q, k, v, attn_mask=(m == 0)),
            reference_attention(q, k, v, m == 0)[1],
        ),
        lambda q, k, v, m: reference_attention(q, k, v, m == 0),
        read=read.MEANING,
    ),
    Mistake(
        "mask_minus_inf_times",
        "You multiply minus infinity with 0 where a cell is allowed: that is NaN, not 0.",
        attention_with(hide=lambda s, m: s + (1.0 - m.to(s.dtype)) * -math.inf),
        attention_with(hide=lambda s, m: s * m.to(s.dtype) + (1.0 - m.to(s.dtype)) * -math.inf),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_fill_plus_inf",
        "Your fill is plus infinity, or NaN: the softmax of such a row is NaN.",
        attention_with(hide=_fill_with(math.inf)),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_fill_large_positive",
        "Your fill has the wrong sign: a large positive score wins every row.",
        attention_with(hide=_fill_with(1e9)),
        attention_with(hide=_fill_with(torch.finfo(torch.float32).max)),
        Sign(_constant_fill(1.0, math.inf)),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_tilde_on_int",
        "Right for True and False, wrong for integers 0 and 1: turned around by ~, 1 becomes -2 and 0 becomes -1, "
        "and both count as true.",
        attention_with(hide=lambda s, m: s.masked_fill((~m).bool(), -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill((~m).bool(), -1e9)),
        read=read.MEANING,
    ),
    Mistake(
        "mask_softmax_wrong_with_minus_inf",
        "Your softmax runs down the columns. With a causal mask that still looks like a triangle, "
        "but the rows do not sum to 1.",
        attention_with(hide=_fill_with(-1e9), normalise=lambda s: s.softmax(-2)),
        attention_with(normalise=lambda s: s.softmax(-2)),
        attention_with(hide=_fill_with(torch.finfo(torch.float32).min), normalise=lambda s: s.softmax(-2)),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_one_minus_bool",
        "1 - mask is not defined for True and False: PyTorch raises.",
        attention_with(hide=lambda s, m: s.masked_fill((1 - m).bool(), -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill((-m).bool(), -math.inf)),
        read=read.MEANING,
    ),
    Mistake(
        "mask_result_dropped",
        "The mask changes nothing in your result: it is not used, or what masked_fill returns is thrown away.",
        attention_with(hide=lambda s, m: s),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_zero_score",
        "Blocked scores are multiplied down to 0. A score of 0 still gets weight, because its exponential is 1.",
        attention_with(hide=lambda s, m: s * m),
        read=read.FAIL,
    ),
    Mistake(
        "mask_fill_minus_1e_minus_9",
        "Your fill is a tiny number near 0, not a huge negative one: look at the sign of its exponent.",
        attention_with(hide=_fill_with(-1e-9)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_finfo_tiny",
        "Your fill is 0, or so close to 0 that it makes no difference (finfo.tiny is the smallest positive number). "
        "That is an ordinary score: its exponential is 1.",
        attention_with(hide=lambda s, m: s.masked_fill(m == 0, torch.finfo(s.dtype).tiny)),
        attention_with(hide=lambda s, m: s.masked_fill(m == 0, torch.finfo(s.dtype).eps)),
        Sign(_constant_fill(-0.05, 0.05)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_fill_minus_10",
        "Your fill is low, but not low enough: the blocked cells keep a little weight, and all of it "
        "once the allowed scores lie lower still.",
        *(attention_with(hide=_fill_with(-float(f))) for f in (10, 1, 5, 20, 50, 100, 1000, 10000, 1e4 / 3, 9999)),
        Sign(_constant_fill(-1e5, -0.05)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_takes_off_too_little",
        "You take a number off the blocked scores, and it is not enough: one that lies further above the allowed ones "
        "still wins.",
        attention_with(hide=lambda s, m: s - (m == 0).to(s.dtype) * 10),
        read=read.FAIL,
    ),
    Mistake(
        "mask_additive_0_1",
        "You add the 0 and 1 of the mask to the scores. That favours the allowed cells a little; it blocks nothing.",
        attention_with(hide=lambda s, m: s + m),
        attention_with(hide=lambda s, m: s - (m == 0).to(s.dtype)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_min_of_scores",
        "Your fill is the lowest score there is: blocked cells tie with the least liked key.",
        attention_with(hide=lambda s, m: torch.where(m == 0, s.min(), s)),
        attention_with(hide=lambda s, m: torch.where(m == 0, s.min().detach(), s)),
        attention_with(hide=lambda s, m: torch.where(m == 0, s.amin(-1, keepdim=True), s)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_square_slice",
        "You cut the mask to as many keys as there are queries. That fits while both are equally many.",
        attention_with(hide=lambda s, m: s.masked_fill(m[..., : s.size(-2), : s.size(-2)] == 0, -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill(m[:, : s.size(-2), : s.size(-2)] == 0, -math.inf)),
        read=read.PADDING,
    ),
    Mistake(
        "mask_truth_value",
        "You ask whether the mask is true. A whole tensor has no single truth value; ask whether there is a mask.",
        attention_with(hide=_only_if),
        read=read.INFINITY,
    ),
    Mistake(
        "mask_after_softmax",
        "You mask after the softmax: the blocked weight is gone and nobody gets it, so the rows no longer sum to 1.",
        _after_softmax(lambda w, m: w * m),
        _after_softmax(lambda w, m: w.masked_fill(m == 0, -math.inf)),
        _after_softmax(lambda w, m: w.masked_fill(m == 0, -1e9)),
        read=read.FAIL,
    ),
    Mistake(
        "mask_transposed",
        "Your mask is turned over: what query i may see has become what key i may be seen by.",
        attention_with(hide=lambda s, m: s.masked_fill(m.transpose(-2, -1) == 0, -math.inf)),
        attention_with(hide=lambda s, m: s.masked_fill(m.transpose(-2, -1) == 0, -1e9)),
        read=read.CAUSAL,
    ),
    Mistake(
        "mask_always_causal",
        "You block the future whatever the mask says.",
        lambda q, k, v, m: reference_attention(q, k, v, torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()),
        lambda q, k, v, m: reference_attention(
            q, k, v, torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril() & (m != 0)
        ),
        read=read.CAUSAL,
    ),
    Mistake(
        "mask_changed",
        "Your code writes into the caller's mask: the next call gets another one.",
        Sign(lambda trials: changes(trials, "mask")),
        read=read.INFINITY,
    ),
)
