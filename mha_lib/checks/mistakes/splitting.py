"""The known mistakes in splitting and merging heads, and in summing them."""

import torch

from mha_lib.checks import read
from mha_lib.checks.case import Mistake
from mha_lib.checks.mistakes.heads import interleaved_merge, interleaved_split, view_merge, view_split
from mha_lib.heads import merge_heads as reference_merge
from mha_lib.heads import split_heads as reference_split

SPLIT = (
    Mistake(
        "split_view_directly",
        "Your heads cut the sentence instead of the features: going straight to four axes with the heads in front "
        "keeps "
        "the order of memory, so a head holds whole tokens, not a part of every token.",
        view_split,
        lambda x, h: x.reshape(x.size(0), h, -1, x.size(1)).mT,
        lambda x, h: x.contiguous().view(x.size(0), h, x.size(1), -1),
    ),
    Mistake(
        "split_no_transpose",
        "You cut the features, but the heads stand behind the tokens: (B, T, h, d_k). "
        "There heads would attend to heads.",
        lambda x, h: x.reshape(*x.shape[:2], h, -1),
        read=read.FRONT,
    ),
    Mistake(
        "split_head_axis_first",
        "Your head axis stands in front of the batch. It belongs behind it.",
        lambda x, h: reference_split(x, h).transpose(0, 1),
        lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=0),
        read=read.FRONT,
    ),
    Mistake(
        "split_interleaved",
        "Your head takes every h-th feature. A head is a block of neighbouring features.",
        interleaved_split,
    ),
    Mistake(
        "split_folds_batch",
        "You fold the heads into the batch and out again without moving an axis: sentences, heads and tokens get "
        "mixed.",
        lambda x, h: x.reshape(h, x.size(0), x.size(1), -1).transpose(0, 1),
        lambda x, h: x.reshape(x.size(0) * h, x.size(1), -1).reshape(h, x.size(0), x.size(1), -1).transpose(0, 1),
    ),
    Mistake(
        "split_sequence_instead",
        "You cut along the tokens. Every head must see every token, with a part of its features.",
        lambda x, h: torch.stack(x.chunk(h, dim=1), dim=1),
        lambda x, h: torch.stack(x.chunk(h, dim=1), dim=0),
        lambda x, h: torch.stack(x.split(x.size(1) // h, dim=1), dim=1),
    ),
    Mistake(
        "split_after_exchange",
        "You exchange tokens and features first, and cut then. A head no longer holds neighbouring features of a "
        "token.",
        lambda x, h: x.transpose(1, 2).reshape(x.size(0), h, x.size(1), -1),
        read=read.CUT,
    ),
    Mistake(
        "split_still_folded",
        "Your heads are folded into the batch, (B * h, T, d_k). Asked for are four axes.",
        lambda x, h: reference_split(x, h).flatten(0, 1),
        lambda x, h: torch.cat(x.chunk(h, -1), 0),
        read=read.FRONT,
    ),
    Mistake(
        "split_last_axes_swapped",
        "Your last two axes are exchanged: (B, h, d_k, T).",
        lambda x, h: reference_split(x, h).transpose(2, 3),
        lambda x, h: x.reshape(*x.shape[:2], h, -1).permute(0, 2, 3, 1),
        read=read.FRONT,
    ),
    Mistake(
        "split_head_count_and_width_swapped",
        "You made heads of h features, d_k of them. It should be h heads of d_k features.",
        lambda x, h: x.reshape(*x.shape[:2], -1, h).transpose(1, 2),
        lambda x, h: torch.stack(x.split(h, dim=-1), dim=1),
    ),
    Mistake(
        "split_wrong_axes_swapped",
        "You swap the wrong pair of axes: the batch moved, or the features did.",
        lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(0, 2),
        lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(2, 3),
        lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(1, 3),
        read=read.FRONT,
    ),
    Mistake(
        "split_one_head_repeated",
        "All your heads hold the same features.",
        lambda x, h: reference_split(x, h)[:, :1].expand(-1, h, -1, -1),
        lambda x, h: x.unsqueeze(1).expand(-1, h, -1, -1),
        lambda x, h: x.unsqueeze(1).repeat(1, h, 1, 1),
    ),
)

MERGE = (
    Mistake(
        "merge_no_transpose",
        "You join without moving the head axis back: the pieces of one token come from several tokens.",
        view_merge,
    ),
    Mistake("merge_sum", "You add the heads up. They lie side by side.", lambda x: x.sum(1)),
    Mistake("merge_mean", "You average the heads. They lie side by side.", lambda x: x.mean(1)),
    Mistake(
        "merge_max",
        "You take the largest of the heads. They lie side by side.",
        lambda x: x.amax(1),
        lambda x: x.amin(1),
    ),
    Mistake(
        "merge_first_head",
        "You return one head. All of them lie side by side.",
        lambda x: x[:, 0],
        lambda x: x[:, -1],
    ),
    Mistake(
        "merge_cat_along_batch",
        "You join the heads along the batch: there are now more sentences, not more features.",
        lambda x: torch.cat(x.unbind(1), 0),
        lambda x: x.flatten(0, 1),
    ),
    Mistake(
        "merge_cat_along_tokens",
        "You join the heads along the tokens: the sentence has become longer.",
        lambda x: torch.cat(x.unbind(1), 1),
        lambda x: x.flatten(1, 2),
    ),
    Mistake(
        "merge_squeezes",
        "Axes of size 1 are gone: with one sentence or one token the result has lost an axis.",
        lambda x: reference_merge(x).squeeze(),
        lambda x: reference_merge(x).squeeze(0),
        lambda x: reference_merge(x).squeeze(1),
    ),
    Mistake(
        "merge_features_interleaved",
        "The features of the heads are interleaved: feature 0 of all heads, then feature 1. "
        "The features of one head stay together.",
        interleaved_merge,
    ),
    Mistake(
        "merge_swap_last_two",
        "You swap the last two axes. It is the heads and the tokens that must change places.",
        lambda x: x.transpose(2, 3).reshape(x.size(0), x.size(2), -1),
    ),
    Mistake(
        "merge_wrong_axes_swapped",
        "You swap the wrong pair of axes before you join.",
        lambda x: x.transpose(0, 1).reshape(x.size(0), x.size(2), -1),
        lambda x: x.transpose(0, 2).reshape(x.size(0), x.size(2), -1),
        lambda x: x.transpose(1, 3).reshape(x.size(0), x.size(2), -1),
    ),
    Mistake(
        "merge_view_refused",
        "view does not move numbers in memory, and after the swap they lie in another order.",
        lambda x: x.transpose(1, 2).view(x.size(0), x.size(2), -1),
    ),
    Mistake(
        "merge_not_joined",
        "The heads are back behind the tokens, but still on an axis of their own.",
        lambda x: x.transpose(1, 2),
        lambda x: torch.stack(x.unbind(1), -1),
    ),
    Mistake(
        "merge_heads_left",
        "You join the tokens with the features: the axis of the heads is still there.",
        lambda x: x.transpose(1, 2).reshape(x.size(0), x.size(1), -1),
        lambda x: x.flatten(2),
        lambda x: x.mT.flatten(2),
    ),
    Mistake(
        "merge_tokens_too",
        "You join the tokens as well: one row is left of a whole sentence.",
        lambda x: x.transpose(1, 2).flatten(1),
        lambda x: x.flatten(1),
    ),
    Mistake(
        "merge_sentences_joined",
        "The axis of the sentences is gone: their tokens stand in one long row.",
        lambda x: reference_merge(x).flatten(0, 1),
        lambda x: x.reshape(-1, x.size(1) * x.size(3)),
    ),
    Mistake("merge_heads_reversed", "The heads are joined in another order.", lambda x: reference_merge(x.flip(1))),
)


def sum_of(heads, weight):
    return reference_merge(heads) @ weight.transpose(0, 1)


def _terms(heads, blocks):
    return sum(heads[:, i] @ block for i, block in enumerate(blocks))


def terms(heads, weight):
    """Return the term of every head, (B, h, T, d_out)."""
    return torch.stack([heads[:, i] @ block for i, block in enumerate(weight.T.split(heads.size(-1)))], 1)


SUM = (
    Mistake(
        "sum_weight_not_transposed",
        "nn.Linear stores its weight as (out, in). You multiply with it as if it were (in, out).",
        lambda h, w: reference_merge(h) @ w,
        lambda h, w: _terms(h, w.split(h.size(-1), 0)),
        lambda h, w: _terms(h, w.split(h.size(-1), 1)),
    ),
    Mistake(
        "sum_wrong_blocks",
        "You cut the weight along the outputs. The block of a head is cut along the inputs.",
        lambda h, w: _terms(h, [b.T for b in w.split(h.size(-1), 0)]),
        lambda h, w: _terms(h, [b.T for b in w.chunk(h.size(1), 0)]),
    ),
    Mistake(
        "sum_first_block_for_all",
        "All heads go through the same block.",
        lambda h, w: _terms(h, [w.T[: h.size(-1)]] * h.size(1)),
        lambda h, w: h.sum(1) @ w.T[: h.size(-1)],
    ),
    Mistake(
        "sum_weight_reshaped",
        "You reshape the weight where it must be turned over: the numbers of a block come from several outputs.",
        lambda h, w: _terms(h, w.reshape(h.size(1), h.size(-1), -1)),
    ),
    Mistake(
        "sum_counted_by_head",
        "The merged heads through the whole weight are the sum already, and you add it up once for every head.",
        lambda h, w: sum_of(h, w) * h.size(1),
    ),
    Mistake(
        "sum_before_the_product",
        "You add the heads up, or average them, before they meet their blocks. Each goes through its own block first.",
        *(
            lambda h, w, add=add: add(h, 1) @ torch.stack(w.T.split(h.size(-1))).sum(0)
            for add in (torch.sum, torch.mean)
        ),
    ),
    Mistake(
        "sum_one_term_left",
        "Only one head is left at the end of your loop: the terms are not added up.",
        lambda h, w: h[:, -1] @ w.T[-h.size(-1) :],
    ),
    Mistake(
        "sum_over_sentences",
        "You walk over the sentences, and their outputs are added up. The heads are axis 1.",
        lambda h, w: sum(h[i] @ w[:, i * h.size(-1) : (i + 1) * h.size(-1)].T for i in range(h.size(0))),
    ),
    Mistake(
        "sum_along_another_axis",
        "You add up along the tokens, or the sentences. It is the heads that are added up.",
        lambda h, w: terms(h, w).sum(2),
        lambda h, w: terms(h, w).sum(0),
    ),
    Mistake(
        "sum_of_everything",
        "You add everything up to one number. Only the heads are added up.",
        lambda h, w: sum_of(h, w).sum(),
    ),
    Mistake(
        "sum_count_for_width",
        "You take the number of heads for the width of one: your blocks are too wide, or too narrow.",
        lambda h, w: sum(h[:, i] @ w[:, i * h.size(1) : (i + 1) * h.size(1)].T for i in range(h.size(1))),
    ),
    Mistake("sum_mean", "You average over the heads. Their terms add up.", lambda h, w: sum_of(h, w) / h.size(1)),
    Mistake(
        "sum_without_moving_axis",
        "You join the heads without moving their axis back.",
        lambda h, w: view_merge(h) @ w.T,
        read=read.BACK,
    ),
    Mistake(
        "sum_interleaved",
        "A head gets every h-th column of the weight. Its columns are neighbours.",
        lambda h, w: interleaved_merge(h) @ w.T,
    ),
    Mistake("sum_reversed", "The heads meet the blocks in another order.", lambda h, w: sum_of(h.flip(1), w)),
    Mistake(
        "sum_without_weight",
        "The weight takes no part, or only in one head.",
        lambda h, w: h.sum(1),
        lambda h, w: reference_merge(h),
        lambda h, w: h[:, 0] @ w.T[: h.size(-1)],
    ),
    Mistake(
        "sum_last_missing",
        "One head is missing from your sum.",
        lambda h, w: _terms(h[:, :-1], w.T.split(h.size(-1))[:-1]),
        lambda h, w: _terms(h[:, 1:], w.T.split(h.size(-1))[1:]),
    ),
    Mistake(
        "sum_not_summed",
        "The terms stand side by side, on an axis of their own. They must be added up.",
        lambda h, w: torch.stack([h[:, i] @ b for i, b in enumerate(w.T.split(h.size(-1)))], 1),
        lambda h, w: torch.cat([h[:, i] @ b for i, b in enumerate(w.T.split(h.size(-1)))], -1),
    ),
)
