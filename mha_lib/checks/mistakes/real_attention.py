"""The known mistakes in attention as transformers calls it."""

from collections.abc import Callable

import torch
from torch import Tensor

from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.recipe import cleared


def _fill(scores: Tensor, mask: Tensor, lowest: float | None = None) -> Tensor:
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min if lowest is None else lowest)


def _by_infinity(scores: Tensor, mask: Tensor) -> Tensor:
    return _fill(scores, mask, -torch.inf)


def _turned(scores: Tensor, mask: Tensor) -> Tensor:
    return _by_infinity(scores, mask.mT)


def _from_the_next(scores: Tensor, mask: Tensor) -> Tensor:
    return _by_infinity(scores, ~mask)


def _in_turn(x: Tensor, n: int) -> Tensor:
    return x.repeat(1, n, 1, 1)


def _heads_last(output: Tensor) -> Tensor:
    return output.permute(0, 2, 3, 1)


def _cut_otherwise(output: Tensor) -> Tensor:
    return output.transpose(1, 2).reshape(output.size(0), output.size(2), output.size(3), output.size(1))


def adapter(
    *,
    repeat=lambda x, n: x.repeat_interleave(n, 1),
    repeat_values=None,
    replaces=False,
    normalise=lambda scores: scores.softmax(-1),
    pair=lambda output, weights: (output, weights),
    causal=lambda module, query, key: bool(module.is_causal) and query.size(2) > 1,
    hide=_fill,
    hide_future=_fill,
    factor=lambda query, scaling: scaling,
    place=lambda output: output.transpose(1, 2),
    give=lambda weights: weights,
):
    """Return an attention function as transformers calls it, with some steps replaced."""

    def attend(module, query, key, value, attention_mask, scaling=None, **options):
        groups = query.size(1) // key.size(1)
        if groups > 1:
            key, value = repeat(key, groups), (repeat_values or repeat)(value, groups)
        scores = query @ key.transpose(-2, -1) * factor(query, scaling or query.size(-1) ** -0.5)
        if replaces and causal(module, query, key):
            attention_mask = None
        if attention_mask is None and causal(module, query, key):
            scores = hide_future(scores, torch.ones(query.size(2), key.size(2), dtype=torch.bool).tril())
        if attention_mask is not None:
            scores = hide(scores, attention_mask)
        weights = normalise(scores)
        return pair(place(weights @ value), give(weights))

    return attend


def _both_masks(hide: Callable) -> tuple:
    """Return a mistake with the mask that is given, and the same with the one that is made as well."""
    return tuple(
        adapter(hide=hide, hide_future=future, normalise=normalise)
        for normalise in (lambda scores: scores.softmax(-1), cleared)
        for future in (_fill, _by_infinity, hide)
    )


def _other_axes(trials):
    """The output has four axes, and never those asked for."""
    told = [
        t.seen.parts["output"]
        for t in trials
        if t.is_wrong and t.seen.error is None and t.want.parts["output"].dim() == 3
    ]
    return bool(told) and all(x.dim() == 4 for x in told)


def _only_grouped_fail(trials):
    wrong = [t for t in trials if t.is_wrong]
    return bool(wrong) and all(t.seen.error is not None and "fewer" in t.probe.label for t in wrong)


REAL_ATTENTION = (
    Mistake(
        "real_mask_added",
        "You add the mask to the scores. It holds True and False: as numbers 1 and 0, they block nothing.",
        *_both_masks(lambda scores, mask: scores + mask),
        *_both_masks(lambda scores, mask: scores + ~mask),
    ),
    Mistake(
        "real_mask_inverted",
        "You block where the mask says True. Here True means may attend, as in the course.",
        *_both_masks(lambda scores, mask: _fill(scores, ~mask)),
        *_both_masks(lambda scores, mask: _fill(scores, ~mask, -torch.inf)),
    ),
    Mistake(
        "real_mask_ignored",
        "The mask that you are given changes nothing.",
        *_both_masks(lambda scores, mask: scores),
    ),
    Mistake(
        "real_not_causal",
        "In a causal model no mask means causal. Your tokens see those after them.",
        adapter(causal=lambda module, query, key: False),
    ),
    Mistake(
        "real_other_triangle",
        "The mask that you make is the other triangle: tokens see what comes after them, and not what comes before.",
        *(
            adapter(hide_future=f, normalise=n)
            for f in (_turned, _from_the_next)
            for n in (lambda scores: scores.softmax(-1), cleared)
        ),
    ),
    Mistake(
        "real_mask_replaced",
        "In a causal model your triangle takes the place of the mask that you are given, and the padding is seen. "
        "It is for where no mask comes.",
        adapter(replaces=True),
    ),
    Mistake(
        "real_always_causal",
        "You hide the future in an encoder too, where every token may see every other.",
        adapter(causal=lambda module, query, key: query.size(2) > 1),
        adapter(causal=lambda module, query, key: True),
    ),
    Mistake(
        "real_one_query_sees_one_key",
        "A single new token sees the first key alone. The triangle stands at the top left; the newest token may "
        "see every key.",
        adapter(causal=lambda module, query, key: bool(module.is_causal)),
    ),
    Mistake(
        "real_heads_in_front",
        "Your output has the heads in front of the tokens. The model merges the last two axes as they come, so "
        "each token "
        "would get features of other tokens, and nothing would complain.",
        adapter(place=lambda output: output),
        adapter(place=lambda output: output.reshape(output.size(0), output.size(2), -1)),
    ),
    Mistake(
        "real_heads_last",
        "The features of a head stand in front of the heads, or were cut anew. The last axis of your output is "
        "d_k, the one before it h.",
        adapter(place=_heads_last),
        adapter(place=_cut_otherwise),
        adapter(place=lambda output: _heads_last(output).flatten(2)),
    ),
    Mistake(
        "real_pair_exchanged",
        "Output and weights stand in the wrong order: the output comes first.",
        adapter(pair=lambda output, weights: (weights, output)),
    ),
    Mistake(
        "real_other_axes",
        "The four axes of your output are others than (B, T_q, h, d_k).",
        Sign(_other_axes),
    ),
    Mistake(
        "real_repeat_order",
        "The copies of the key heads stand in the wrong order: neighbouring query heads share one key head.",
        adapter(repeat=_in_turn),
    ),
    Mistake(
        "real_repeat_orders_differ",
        "Keys and values are repeated in different orders: a query head reads the key of one head and the value "
        "of another.",
        adapter(repeat_values=_in_turn),
        adapter(repeat=_in_turn, repeat_values=lambda x, n: x.repeat_interleave(n, 1)),
    ),
    Mistake(
        "real_groups_forgotten",
        "A model may have fewer key heads than query heads. Each of them then serves several query heads.",
        Sign(_only_grouped_fail),
    ),
    Mistake(
        "real_scaled_twice",
        "Your scores are divided by the root of the width twice: once by scaling, once by your attention.",
        adapter(factor=lambda query, scaling: scaling**2),
    ),
    Mistake(
        "real_divided_by_scaling",
        "You divide by scaling, or by its root. It is the factor itself, one over the root of the width: scores "
        "are multiplied by it.",
        adapter(factor=lambda query, scaling: 1 / scaling),
        adapter(factor=lambda query, scaling: scaling**-0.5),
        adapter(factor=lambda query, scaling: scaling**0.5),
    ),
    Mistake(
        "real_softmax_over_others",
        "Your softmax runs over another axis than the keys, the last one.",
        *(
            adapter(normalise=lambda scores, axis=axis: scores.softmax(axis), hide=fill, hide_future=fill)
            for axis in (-2, 1, 0)
            for fill in (_fill, _by_infinity)
        ),
    ),
    Mistake(
        "real_not_scaled",
        "Your scores are not divided by the root of the width.",
        adapter(factor=lambda query, scaling: 1.0),
    ),
    Mistake(
        "real_weights_averaged",
        "Your weights are the mean over the heads. Asked for is one table for each head.",
        adapter(give=lambda weights: weights.mean(1)),
        adapter(give=lambda weights: weights.mean(1, keepdim=True)),
    ),
)
