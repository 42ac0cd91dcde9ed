"""The known mistakes in attention by heads: the same for the bare function and for the whole layer."""

import torch

from mha_lib.checks import read
from mha_lib.checks.case import Mistake
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import Recipe, by_head, fill, on, times_of
from mha_lib.heads import merge_heads


def view_split(x, num_heads):
    return x.reshape(x.size(0), num_heads, x.size(1), -1)


def view_merge(x):
    return x.reshape(x.size(0), x.size(2), -1)


def interleaved_split(x, num_heads):
    return x.reshape(*x.shape[:2], -1, num_heads).permute(0, 3, 1, 2)


def interleaved_merge(x):
    return x.permute(0, 2, 3, 1).flatten(2)


def repeated(scores, mask):
    """Fold the heads into the batch and repeat the mask in the wrong order."""
    batch, heads, query_len, key_len = scores.shape
    mask = mask.expand(batch, query_len, key_len).repeat(heads, 1, 1)
    return fill(scores.reshape(-1, query_len, key_len), mask).reshape(scores.shape)


def future_hidden(scores, mask=None):
    """Block the future, whatever the mask says."""
    return fill(scores, torch.ones(scores.shape[-2:], dtype=torch.bool).tril())


def _first_for_all(*heads):
    return tuple(x[:, :1].expand(-1, x.size(1), -1, -1) for x in heads)


def _on_queries(scores, mask):
    return fill(scores, mask.transpose(1, 2).unsqueeze(1) if mask.dim() == 3 else mask.transpose(-2, -1))


def head_mistakes(
    recipe: Recipe, *, head_axis_lost: tuple = (), always_causal: tuple = (), activation: tuple = ()
) -> list[Mistake]:
    """Return the mistakes of attention by heads, made on a recipe that splits, attends and merges.

    The named arguments are more evidence for the mistakes of those names.
    """
    return [
        Mistake(
            "mha_split_view_directly",
            "Your heads cut the sentence instead of the features: going straight to (B, h, T, d_k) keeps the order of "
            "memory, and tokens get mixed.",
            recipe(split=view_split),
            read=read.CUT,
        ),
        Mistake(
            "mha_split_and_merge_view",
            "Split and merge both go straight through memory. They undo each other, so it looks consistent, "
            "but the heads attended to pieces of the sentence.",
            recipe(split=view_split, merge=view_merge),
            read=read.CUT,
        ),
        Mistake(
            "mha_merge_view",
            "You join the heads without moving their axis back.",
            recipe(merge=view_merge),
            read=read.BACK,
        ),
        Mistake(
            "mha_interleaved_both_ways",
            "Your heads take every h-th feature, going in, coming out, or both. Both ways are consistent, but not the "
            "layout everyone else uses: weights cannot be exchanged.",
            recipe(split=interleaved_split, merge=interleaved_merge),
            recipe(split=interleaved_split),
            recipe(merge=interleaved_merge),
            read=read.CUT,
        ),
        Mistake(
            "mha_scale_missing",
            "The scores are not divided by the root of the width of a head.",
            recipe(scale=times_of(lambda d, h, t: 1.0)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_scale_num_heads",
            "You divide by the root of the number of heads. It is the width of a head that counts.",
            recipe(scale=times_of(lambda d, h, t: h**-0.5)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_scale_d_model",
            "You divide by the root of d_model. The sum that makes a score runs over the d_k features of one head.",
            recipe(scale=times_of(lambda d, h, t: (d * h) ** -0.5)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_scale_other",
            "The scale is not one over the root of the width of a head.",
            recipe(scale=times_of(lambda d, h, t: 1 / d)),
            recipe(scale=times_of(lambda d, h, t: d**0.5)),
            recipe(scale=times_of(lambda d, h, t: t**-0.5)),
            recipe(scale=times_of(lambda d, h, t: d**-0.25)),
            recipe(scale=times_of(lambda d, h, t: 1 / (d * h))),
            *(recipe(scale=times_of(lambda d, h, t, c=c: 1 / c)) for c in (8, 64, 16, 4, 2)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_first_head_only",
            "Every head uses the features of head 0; the other slices are never looked at.",
            recipe(heads=_first_for_all),
            read=read.CUT,
        ),
        Mistake(
            "mha_single_head",
            "The features are never split: one softmax attends with all of them.",
            recipe(split=lambda x, h: x.unsqueeze(1), merge=lambda x: x.squeeze(1)),
            recipe(split=lambda x, h: x.unsqueeze(1), merge=lambda x: x.squeeze(1), weights=lambda w: w.squeeze(1)),
            recipe(
                split=lambda x, h: x.unsqueeze(1).expand(-1, h, -1, -1),
                merge=lambda x: x[:, 0],
                scale=times_of(lambda d, h, t: d**-0.5),
            ),
            read=read.ONE,
        ),
        Mistake(
            "mha_scores_sum_heads",
            "The scores are added up or averaged over the heads, so that all heads attend alike.",
            recipe(dot=lambda q, k, v: (q @ k.transpose(-2, -1)).sum(1, keepdim=True)),
            recipe(dot=lambda q, k, v: (q @ k.transpose(-2, -1)).mean(1, keepdim=True)),
            recipe(dot=lambda q, k, v: (s := q @ k.transpose(-2, -1)).sum(1, keepdim=True).expand_as(s)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_softmax_over_heads",
            "Your softmax runs over the heads: they share out one weight among them.",
            recipe(normalise=lambda s: s.softmax(1)),
            recipe(normalise=lambda s: s.clamp_min(-1e9).softmax(1)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_softmax_over_queries",
            "Your softmax runs over the queries, down the columns.",
            recipe(normalise=lambda s: s.softmax(2)),
            recipe(normalise=lambda s: s.clamp_min(-1e9).softmax(2)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_heads_averaged",
            "The heads are averaged or added up. They belong side by side.",
            recipe(merge=lambda x: x.mean(1).repeat(1, 1, x.size(1))),
            recipe(merge=lambda x: x.sum(1).repeat(1, 1, x.size(1))),
            recipe(merge=lambda x: x.sum(1)),
            recipe(merge=lambda x: x.mean(1)),
            read=read.BACK,
        ),
        Mistake(
            "mha_not_merged",
            "The heads are not joined again: the output still has a head axis.",
            recipe(merge=lambda x: x),
            recipe(merge=lambda x: x.transpose(1, 2)),
            read=read.BACK,
        ),
        Mistake(
            "mha_weights_averaged",
            "Your weights are the mean over the heads. Asked for is one table for each head.",
            recipe(weights=lambda w: w.mean(1)),
            read=read.LOOP,
        ),
        Mistake(
            "mha_weights_mix_keys",
            "The weights mix the keys, not the values.",
            recipe(mix=lambda w, v, k, q: w @ k),
            read=read.LOOP,
        ),
        Mistake(
            "mha_mask_result_dropped",
            "The mask changes nothing: it is not used, or what masked_fill returns is thrown away.",
            recipe(hide=lambda s, m: s),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_without_head_axis",
            "The mask meets the scores without a head axis: its sentences line up with the heads. With as many "
            "sentences "
            "as heads nothing complains.",
            recipe(hide=fill),
            *head_axis_lost,
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_unsqueeze_0",
            "The axis you put into the mask stands in front, where it changes nothing: its sentences still meet the "
            "heads.",
            recipe(hide=lambda s, m: fill(s, m.unsqueeze(0))),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_repeat_folded",
            "The heads are folded into the batch, and the copies of the mask stand in another order than they do.",
            recipe(hide=repeated),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_unsqueeze_3",
            "The mask blocks rows of queries instead of columns of keys: its axes are exchanged.",
            recipe(hide=_on_queries),
            recipe(hide=by_head(lambda s, m: fill(s, m.transpose(-2, -1)))),
            recipe(hide=lambda s, m: s.masked_fill(m.transpose(1, 2).unsqueeze(1) == 0, -1e9)),
            recipe(hide=lambda s, m: s.masked_fill(m.unsqueeze(1).unsqueeze(3) == 0, -1e9)),
            recipe(hide=lambda s, m: s.masked_fill(m.unsqueeze(-1) == 0, -1e9)),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_first_query",
            "One row of the mask is used for all queries: what its first query may see.",
            recipe(hide=by_head(lambda s, m: fill(s, m[..., :1, :]))),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_two_axes",
            "Two axes are put into a mask that has three already: against the scores its sentences and queries stand "
            "in "
            "other places.",
            recipe(hide=lambda s, m: fill(s, m[:, None, None])),
            recipe(hide=lambda s, m: fill(s, m.unsqueeze(2))),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_mask_inverted_for_sdpa",
            "You block where the mask is True. Here, and in scaled_dot_product_attention, True means may attend.",
            recipe(hide=by_head(lambda s, m: fill(s, m == 0))),
            recipe(hide=by_head(lambda s, m: s.masked_fill(m != 0, -1e9))),
            recipe(hide=by_head(lambda s, m: fill(s, m == 0)), normalise=lambda s: s.softmax(-1).nan_to_num(0.0)),
            read=read.MEANING,
        ),
        Mistake(
            "mha_mask_weak",
            "The blocked cells keep some weight: the fill is not low enough, or the mask is only added or multiplied.",
            *(recipe(hide=by_head(lambda s, m, f=f: s.masked_fill(m == 0, f))) for f in (0.0, -10.0, 1e-9, -1.0)),
            recipe(hide=by_head(lambda s, m: s + m)),
            recipe(hide=by_head(lambda s, m: s * m)),
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_is_causal_instead_of_mask",
            "Whenever there is a mask you block the future, whatever the mask says.",
            recipe(hide=future_hidden),
            read=read.CAUSAL,
        ),
        Mistake(
            "mha_always_causal",
            "You block the future even where no mask is given.",
            recipe(normalise=lambda s: future_hidden(s).softmax(-1)),
            recipe(normalise=lambda s: future_hidden(s).softmax(-1), hide=lambda s, m: s),
            *always_causal,
            read=read.CAUSAL,
        ),
        Mistake(
            "mha_activation_inside",
            "There is an activation between the steps. This layer has none but the softmax.",
            recipe(merge=lambda x: merge_heads(x).relu()),
            recipe(heads=lambda *x: tuple(t.relu() for t in x)),
            *activation,
            read=read.LAYER,
        ),
        Mistake(
            "mha_scores_clipped",
            "The scores are cut off at a limit before the softmax: all beyond it become equal.",
            *(recipe(normalise=lambda s, c=c: s.clamp(-c, c).softmax(-1)) for c in (1.0, 5.0, 10.0)),
            read=read.LOOP,
        ),
        *on(recipe, MASKING, without=_SAID, hide=by_head),
        *on(
            recipe, [m for m in ATTENTION if m.read != read.STABLE] + list(SCALING), without=_SAID
        ),  # no scores that overflow
    ]


# Mistakes of the shared tables that the table above says better for heads.
_SAID = (
    "mask_inverted",
    "mask_result_dropped",
    "mask_transposed",
    "mask_additive_0_1",
    "mask_zero_score",
    "mask_finfo_tiny",
    "mask_fill_minus_10",
    "mask_fill_minus_1e_minus_9",
    "mask_softmax_wrong_with_minus_inf",
    "att_softmax_over_queries",
    "att_softmax_dim2_hardcoded",
    "att_softmax_dim1_hardcoded",
    "att_weights_times_key",
    "scale_missing",
    "scale_without_sqrt",
    "scale_multiplies",
    "scale_by_dim1",
    "scale_by_seq_len",
    "scale_quarter_once",
    "scale_hardcoded_8",
    "scale_by_value_width",
    "mask_takes_off_too_little",
    "mask_always_causal",
    "att_always_causal",
    "mask_tilde_on_int",
    "mask_square_slice",
)
