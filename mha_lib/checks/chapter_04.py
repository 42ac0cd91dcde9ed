"""The checks of chapter 4."""

import torch

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import head_variants as hv
from mha_lib.checks import planted
from mha_lib.checks.bug_hunt import BugHunt, Lucky
from mha_lib.checks.engine import Exercise, Mistake, Probe, one_tensor, output_and_weights
from mha_lib.checks.inputs import normal, numbered, padding
from mha_lib.heads import merge_heads as reference_merge
from mha_lib.heads import split_heads as reference_split
from mha_lib.masks import causal_mask

CUT = "notebook 04, “Cut the features, not the sentence”"
FRONT = "notebook 04, “The head axis goes in front”"
BACK = "notebook 04, “Back again”"
LOOP = "notebook 04, “A loop over heads, or one product”"
MASK = "notebook 04, “The mask needs the head axis”"
ONE = "notebook 04, “One softmax, one focus”"


def _cells(label, *shape, heads=None):
    args = (numbered(*shape),) if heads is None else (numbered(*shape), heads)
    return Probe(label, args, cells=True)


split_heads = Exercise(
    "split_heads",
    signature="x num_heads",
    expects="one tensor (B, h, T, d_k): head i holds features i * d_k to (i + 1) * d_k of every token.",
    reference=reference_split,
    parts=one_tensor("heads"),
    read=CUT,
    probes=[
        _cells("2 sentences of 3 tokens, 4 heads", 2, 3, 8, heads=4),
        _cells("as many tokens as heads", 2, 4, 8, heads=4),
        _cells("as many sentences as heads", 4, 3, 8, heads=4),
        _cells("as many features in a head as heads", 2, 3, 16, heads=4),
        _cells("one head", 2, 3, 8, heads=1),
        _cells("one token", 2, 1, 8, heads=4),
        _cells("one sentence", 1, 3, 8, heads=4),
        _cells("heads of one feature", 2, 3, 4, heads=4),
        Probe("gradients", (normal(2, 3, 8, seed=81), 4), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "split_view_directly",
            "Your heads cut the sentence instead of the features: going straight to (B, h, T, d_k) keeps the order of "
            "memory, so a head holds whole tokens, not a part of every token.",
            CUT,
            (hv.view_split, lambda x, h: x.contiguous().view(x.size(0), h, x.size(1), -1)),
        ),
        Mistake(
            "split_no_transpose",
            "You cut the features, but the heads stand behind the tokens: (B, T, h, d_k). "
            "There heads would attend to heads.",
            FRONT,
            (lambda x, h: x.reshape(*x.shape[:2], h, -1),),
        ),
        Mistake(
            "split_head_axis_first",
            "Your head axis stands in front of the batch. It belongs behind it.",
            FRONT,
            (
                lambda x, h: reference_split(x, h).transpose(0, 1),
                lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=0),
            ),
        ),
        Mistake(
            "split_interleaved",
            "Your head takes every h-th feature. A head is a block of neighbouring features.",
            CUT,
            (hv.interleaved_split,),
        ),
        Mistake(
            "split_folds_batch",
            "You fold the heads into the batch and out again without moving an axis: sentences, heads and tokens get mixed.",
            CUT,
            (
                lambda x, h: x.reshape(h, x.size(0), x.size(1), -1).transpose(0, 1),
                lambda x, h: x.reshape(x.size(0) * h, x.size(1), -1).reshape(h, x.size(0), x.size(1), -1).transpose(0, 1),
            ),
        ),
        Mistake(
            "split_sequence_instead",
            "You cut along the tokens. Every head must see every token, with a part of its features.",
            CUT,
            (
                lambda x, h: torch.stack(x.chunk(h, dim=1), dim=1),
                lambda x, h: torch.stack(x.chunk(h, dim=1), dim=0),
                lambda x, h: torch.stack(x.split(x.size(1) // h, dim=1), dim=1),
            ),
        ),
        Mistake(
            "split_still_folded",
            "Your heads are folded into the batch, (B * h, T, d_k). Asked for are four axes.",
            FRONT,
            (lambda x, h: reference_split(x, h).flatten(0, 1),),
        ),
        Mistake(
            "split_last_axes_swapped",
            "Your last two axes are exchanged: (B, h, d_k, T).",
            FRONT,
            (lambda x, h: reference_split(x, h).transpose(2, 3), lambda x, h: x.reshape(*x.shape[:2], h, -1).permute(0, 2, 3, 1)),
        ),
        Mistake(
            "split_head_count_and_width_swapped",
            "You made heads of h features, d_k of them. It should be h heads of d_k features.",
            CUT,
            (
                lambda x, h: x.reshape(*x.shape[:2], -1, h).transpose(1, 2),
                lambda x, h: torch.stack(x.split(h, dim=-1), dim=1),
            ),
        ),
        Mistake(
            "split_wrong_axes_swapped",
            "You swap the wrong pair of axes: the batch moved, or the features did.",
            FRONT,
            (
                lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(0, 2),
                lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(2, 3),
                lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(1, 3),
            ),
        ),
        Mistake(
            "split_one_head_repeated",
            "All your heads hold the same features.",
            CUT,
            (
                lambda x, h: reference_split(x, h)[:, :1].expand(-1, h, -1, -1),
                lambda x, h: x.unsqueeze(1).expand(-1, h, -1, -1),
                lambda x, h: x.unsqueeze(1).repeat(1, h, 1, 1),
            ),
        ),
    ],
)

merge_heads = Exercise(
    "merge_heads",
    signature="x",
    expects="one tensor (B, T, h * d_k): for every token the features of head 0, then of head 1, and so on.",
    reference=reference_merge,
    parts=one_tensor("merged"),
    read=BACK,
    probes=[
        _cells("4 heads of 2 features, 3 tokens", 2, 4, 3, 2),
        _cells("as many tokens as heads", 2, 4, 4, 2),
        _cells("as many sentences as heads", 4, 4, 3, 2),
        _cells("as many features in a head as heads", 2, 4, 3, 4),
        _cells("as many features in a head as tokens", 2, 4, 3, 3),
        _cells("one head", 2, 1, 3, 8),
        _cells("one token", 2, 4, 1, 2),
        _cells("one sentence", 1, 4, 3, 2),
        _cells("heads of one feature", 2, 4, 3, 1),
        Probe("gradients", (normal(2, 4, 3, 2, seed=82),), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "merge_no_transpose",
            "You join without moving the head axis back: the pieces of one token come from several tokens.",
            BACK,
            (hv.view_merge,),
        ),
        Mistake("merge_sum", "You add the heads up. They lie side by side.", BACK, (lambda x: x.sum(1),)),
        Mistake("merge_mean", "You average the heads. They lie side by side.", BACK, (lambda x: x.mean(1),)),
        Mistake(
            "merge_max",
            "You take the largest of the heads. They lie side by side.",
            BACK,
            (lambda x: x.amax(1), lambda x: x.amin(1)),
        ),
        Mistake(
            "merge_first_head",
            "You return one head. All of them lie side by side.",
            BACK,
            (lambda x: x[:, 0], lambda x: x[:, -1]),
        ),
        Mistake(
            "merge_cat_along_batch",
            "You join the heads along the batch: there are now more sentences, not more features.",
            BACK,
            (lambda x: torch.cat(x.unbind(1), 0), lambda x: x.flatten(0, 1)),
        ),
        Mistake(
            "merge_cat_along_tokens",
            "You join the heads along the tokens: the sentence has become longer.",
            BACK,
            (lambda x: torch.cat(x.unbind(1), 1), lambda x: x.flatten(1, 2)),
        ),
        Mistake(
            "merge_squeezes",
            "Axes of size 1 are gone: with one sentence or one token the result has lost an axis.",
            BACK,
            (
                lambda x: reference_merge(x).squeeze(),
                lambda x: reference_merge(x).squeeze(0),
                lambda x: reference_merge(x).squeeze(1),
            ),
        ),
        Mistake(
            "merge_features_interleaved",
            "The features of the heads are interleaved: feature 0 of all heads, then feature 1. "
            "The features of one head stay together.",
            BACK,
            (hv.interleaved_merge,),
        ),
        Mistake(
            "merge_swap_last_two",
            "You swap the last two axes. It is the heads and the tokens that must change places.",
            BACK,
            (lambda x: x.transpose(2, 3).reshape(x.size(0), x.size(2), -1),),
        ),
        Mistake(
            "merge_wrong_axes_swapped",
            "You swap the wrong pair of axes before you join.",
            BACK,
            (
                lambda x: x.transpose(0, 1).reshape(x.size(0), x.size(2), -1),
                lambda x: x.transpose(0, 2).reshape(x.size(0), x.size(2), -1),
                lambda x: x.transpose(1, 3).reshape(x.size(0), x.size(2), -1),
            ),
        ),
        Mistake(
            "merge_view_refused",
            "view does not move numbers in memory, and after the swap they lie in another order.",
            BACK,
            (lambda x: x.transpose(1, 2).view(x.size(0), x.size(2), -1),),
        ),
        Mistake(
            "merge_not_joined",
            "The heads are back behind the tokens, but still on an axis of their own.",
            BACK,
            (lambda x: x.transpose(1, 2), lambda x: x.permute(0, 2, 1, 3).contiguous()),
        ),
        Mistake(
            "merge_heads_reversed",
            "The heads are joined in another order.",
            BACK,
            (lambda x: reference_merge(x.flip(1)),),
        ),
    ],
)

_QUERY, _KEY, _VALUE = normal(3, 4, 12, seed=83), normal(3, 6, 12, seed=84), normal(3, 6, 12, seed=85)
_SELF = normal(4, 5, 12, seed=86)
_CAUSAL = causal_mask(5)

heads_attention = Exercise(
    "heads_attention",
    signature="query key value num_heads mask",
    expects="a pair (output, weights): output (B, T_q, d_model) and weights (B, h, T_q, T_k), one table for each head.",
    reference=hv.heads_with(),
    parts=output_and_weights,
    read=LOOP,
    probes=[
        Probe("cross-attention with 4 heads", (_QUERY, _KEY, _VALUE, 4, None)),
        Probe("self-attention with 3 heads", (_SELF, _SELF, _SELF, 3, None)),
        Probe("one head", (_QUERY, _KEY, _VALUE, 1, None)),
        Probe("a padding mask", (_QUERY, _KEY, _VALUE, 4, padding(3, 6))),
        Probe("a causal mask", (_SELF, _SELF, _SELF, 3, _CAUSAL)),
        Probe("as many sentences as heads, with padding", (_SELF, _SELF, _SELF, 4, padding(4, 5))),
        Probe("padding and causal", (_SELF, _SELF, _SELF, 4, padding(4, 5) & _CAUSAL)),
        Probe("gradients", (_QUERY, _KEY, _VALUE, 4, None), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "heads_split_view",
            "Your heads cut the sentence instead of the features.",
            CUT,
            (
                hv.heads_with(split=hv.view_split),
                hv.heads_with(split=hv.view_split, merge=hv.view_merge),
            ),
        ),
        Mistake("heads_merge_view", "You join the heads without moving their axis back.", BACK, (hv.heads_with(merge=hv.view_merge),)),
        Mistake(
            "heads_interleaved",
            "Your heads take every h-th feature, or are joined that way. A head is a block of neighbouring features.",
            CUT,
            (
                hv.heads_with(split=hv.interleaved_split, merge=hv.interleaved_merge),
                hv.heads_with(split=hv.interleaved_split),
                hv.heads_with(merge=hv.interleaved_merge),
            ),
        ),
        Mistake(
            "heads_not_split",
            "There is one softmax over all features: your heads are not separate.",
            ONE,
            (
                lambda q, k, v, h, m=None: reference_attention(q, k, v, m),
                lambda q, k, v, h, m=None: ((a := reference_attention(q, k, v, m))[0], a[1].unsqueeze(1)),
                lambda q, k, v, h, m=None: (
                    (a := reference_attention(q, k, v, m))[0],
                    a[1].unsqueeze(1).expand(-1, h, -1, -1),
                ),
            ),
        ),
        Mistake(
            "heads_scale_by_d_model",
            "You divide by the root of d_model. The sum that makes a score runs over the d_k features of one head.",
            LOOP,
            (hv.heads_with(scores=hv.scaled_by(lambda d, h, t: (d * h) ** -0.5)),),
        ),
        Mistake(
            "heads_scale_missing",
            "The scores are not scaled by the root of the width of a head.",
            LOOP,
            (hv.heads_with(scores=hv.scaled_by(lambda d, h, t: 1.0)),),
        ),
        Mistake(
            "heads_scale_other",
            "The scale is not one over the root of the width of a head.",
            LOOP,
            (
                hv.heads_with(scores=hv.scaled_by(lambda d, h, t: 1 / d)),
                hv.heads_with(scores=hv.scaled_by(lambda d, h, t: h**-0.5)),
                hv.heads_with(scores=hv.scaled_by(lambda d, h, t: t**-0.5)),
                hv.heads_with(scores=hv.scaled_by(lambda d, h, t: 1 / 8)),
            ),
        ),
        Mistake(
            "heads_mask_without_head_axis",
            "The mask meets the scores without a head axis: its sentences line up with the heads. "
            "With as many sentences as heads nothing complains.",
            MASK,
            (hv.heads_with(block=hv.as_it_is), hv.heads_with(block=lambda s, m: hv.as_it_is(s, m.unsqueeze(0)))),
        ),
        Mistake(
            "heads_mask_repeat_order",
            "The heads are folded into the batch, and the copies of the mask stand in another order than they do.",
            MASK,
            (hv.heads_with(block=hv.repeated),),
        ),
        Mistake(
            "heads_mask_ignored",
            "The mask changes nothing in your result.",
            MASK,
            (hv.heads_with(block=lambda s, m: s),),
        ),
        Mistake(
            "heads_mask_inverted",
            "You block where the mask is True. Here True means may attend.",
            MASK,
            (
                hv.heads_with(block=lambda s, m: hv.hide(s, m == 0)),
                hv.heads_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1) != 0, -1e9)),
            ),
        ),
        Mistake(
            "heads_mask_on_queries",
            "The mask blocks rows of queries instead of columns of keys.",
            MASK,
            (hv.heads_with(block=lambda s, m: hv.hide(s, m.transpose(1, 2))),),
        ),
        Mistake(
            "heads_softmax_axis",
            "Your softmax runs over the heads or over the queries. It must run over the keys.",
            LOOP,
            (
                hv.heads_with(normalise=lambda s: s.softmax(1)),
                hv.heads_with(normalise=lambda s: s.softmax(2)),
            ),
        ),
        Mistake(
            "heads_summed",
            "The heads are added up or averaged. They lie side by side.",
            BACK,
            (
                hv.heads_with(merge=lambda x: x.sum(1)),
                hv.heads_with(merge=lambda x: x.mean(1)),
                hv.heads_with(merge=lambda x: x.mean(1).repeat(1, 1, x.size(1))),
            ),
        ),
        Mistake(
            "heads_scores_summed",
            "The scores of all heads are added up, so that all attend alike.",
            LOOP,
            (
                hv.heads_with(scores=lambda q, k, h: hv.scaled(q, k, h).sum(1, keepdim=True)),
                hv.heads_with(scores=lambda q, k, h: hv.scaled(q, k, h).sum(1, keepdim=True).expand(-1, h, -1, -1)),
            ),
        ),
        Mistake(
            "heads_first_only",
            "Every head uses the features of head 0.",
            CUT,
            (hv.heads_with(inputs=lambda q, k, v: tuple(t[:, :1].expand(-1, t.size(1), -1, -1) for t in (q, k, v))),),
        ),
        Mistake(
            "heads_value_is_key",
            "The weights mix the keys, not the values.",
            LOOP,
            (hv.heads_with(inputs=lambda q, k, v: (q, k, k)),),
        ),
        Mistake(
            "heads_not_merged",
            "The heads are not joined again: the output still has a head axis.",
            BACK,
            (hv.heads_with(merge=lambda x: x), hv.heads_with(merge=lambda x: x.transpose(1, 2))),
        ),
        Mistake(
            "heads_weights_averaged",
            "Your weights are the mean over the heads. Asked for is one table for each head.",
            LOOP,
            (lambda q, k, v, h, m=None: ((a := hv.heads_with()(q, k, v, h, m))[0], a[1].mean(1)),),
        ),
    ],
)


def _by_heads(x, num_heads):
    return hv.heads_with()(x, x, x, num_heads)[0]


bug_splitting = BugHunt(
    "bug_splitting",
    signature="x num_heads",
    expects="the arguments (x, num_heads) of a call on which the function gives a wrong output.",
    reference=_by_heads,
    buggy=planted.attention_by_heads,
    read=CUT,
    lucky=(
        Lucky("hidden_by_one_head", "With one head there is nothing to split.", lambda x, num_heads: num_heads == 1),
        Lucky(
            "hidden_by_one_token",
            "With one token a head cannot take anything from another.",
            lambda x, num_heads: x.size(1) == 1,
        ),
        Lucky(
            "hidden_by_equal_numbers",
            "All numbers are alike here: whichever a head takes, it is the same.",
            lambda x, num_heads: float(x.max() - x.min()) < 1e-3,
        ),
    ),
)
