"""The checks of chapter 4, and of chapter 5's sum: splitting, merging, attending by heads."""

import torch

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe
from mha_lib.checks.compare import one_tensor, output_and_weights
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered, padding
from mha_lib.checks.mistakes.heads import head_mistakes, interleaved_merge, interleaved_split, view_merge, view_split
from mha_lib.checks.recipe import heads_with, times_of
from mha_lib.heads import merge_heads as reference_merge
from mha_lib.heads import split_heads as reference_split
from mha_lib.masks import causal_mask


def _cells(label, *shape, heads=None):
    args = (numbered(*shape),) if heads is None else (numbered(*shape), heads)
    return Probe(label, args, cells=True)


def _looped(x, weights, num_heads, rows=lambda w, i, d: w[i * d : (i + 1) * d], join=lambda heads: torch.cat(heads, -1)):
    """Chapter 1's head, num_heads times, each on its own slice of the weights; joined."""
    width, heads = x.size(-1) // num_heads, []
    for i in range(num_heads):
        q, k, v = (x @ rows(w, i, width).transpose(0, 1) for w in weights)
        heads.append(reference_attention(q, k, v)[0])
    return join(heads)


def _loop(x, w_q, w_k, w_v, num_heads):
    return _looped(x, (w_q, w_k, w_v), num_heads)


def _loop_with(**changes):
    return lambda x, w_q, w_k, w_v, num_heads: _looped(x, (w_q, w_k, w_v), num_heads, **changes)


def _on_slices_of_the_input(project, scale_of_head=False):
    """Head i is given its own slice of the input features alone."""

    def loop(x, w_q, w_k, w_v, num_heads):
        width, heads = x.size(-1) // num_heads, []
        for i in range(num_heads):
            here = slice(i * width, (i + 1) * width)
            q, k, v = (project(x[..., here], w, here) for w in (w_q, w_k, w_v))
            heads.append(reference_attention(q * (q.size(-1) / width) ** 0.5 if scale_of_head else q, k, v)[0])
        return torch.cat(heads, -1)

    return loop


def _by_root_of_the_model(x, w_q, w_k, w_v, num_heads):
    projected = (x @ w_q.T, x @ w_k.T, x @ w_v.T)
    return heads_with(scale=times_of(lambda d_k, heads, keys: (d_k * heads) ** -0.5))(*projected, num_heads)[0]


def _without_scale(x, w_q, w_k, w_v, num_heads):
    return heads_with(scale=times_of(lambda d_k, heads, keys: 1.0))(x @ w_q.T, x @ w_k.T, x @ w_v.T, num_heads)[0]


def _layer_args(batch, length, d_model, num_heads, seed):
    weights = (normal(d_model, d_model, seed=seed + i, scale=d_model**-0.5) for i in (1, 2, 3))
    return (normal(batch, length, d_model, seed=seed), *weights, num_heads)


loop_of_heads = Exercise(
    "loop_of_heads",
    signature="x w_q w_k w_v num_heads",
    expects="one tensor (B, T, d_model): the outputs of all heads side by side, head 0 first.",
    reference=_loop,
    parts=one_tensor("output"),
    read=read.LOOP,
    probes=[
        Probe("4 heads of 3 features", _layer_args(2, 5, 12, 4, seed=200)),
        Probe("3 heads of 4 features", _layer_args(2, 5, 12, 3, seed=210)),
        Probe("as many sentences as heads", _layer_args(3, 5, 6, 3, seed=220)),
        Probe("as many features in a head as heads", _layer_args(2, 5, 16, 4, seed=230)),
        Probe("one head", _layer_args(2, 5, 6, 1, seed=240)),
        Probe("gradients", _layer_args(2, 5, 12, 4, seed=250), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "loop_slices_the_input",
            "Your head reads a slice of the input features only. Every head reads all of them; "
            "its own is a slice of the projections.",
            _on_slices_of_the_input(lambda part, w, here: part @ w[here, here].T),
            _on_slices_of_the_input(lambda part, w, here: part @ w[here, here]),
            *(_on_slices_of_the_input(lambda part, w, here: part @ w[:, here].T, scaled) for scaled in (False, True)),
            *(_on_slices_of_the_input(lambda part, w, here: part @ w[here], scaled) for scaled in (False, True)),
            _on_slices_of_the_input(lambda part, w, here: part),
        ),
        Mistake(
            "loop_slices_the_columns",
            "You cut the weights along their inputs. A weight is (features out, features in), "
            "and a head owns some of the features that come out.",
            _loop_with(rows=lambda w, i, d: w[:, i * d : (i + 1) * d].T),
            _loop_with(rows=lambda w, i, d: w[:, i * d : (i + 1) * d]),
        ),
        Mistake(
            "loop_weight_not_transposed",
            "You multiply with a slice of the weight as it lies: its rows are outputs, and x meets them instead of its columns.",
            _loop_with(rows=lambda w, i, d: w[i * d : (i + 1) * d].T),
        ),
        Mistake(
            "loop_not_joined",
            "Your heads stand on an axis of their own. Asked for are their features side by side.",
            _loop_with(join=lambda heads: torch.stack(heads)),
            _loop_with(join=lambda heads: torch.stack(heads, 1)),
            _loop_with(join=lambda heads: torch.stack(heads, 2)),
            _loop_with(join=lambda heads: torch.stack(heads, -1)),
            read=read.BACK,
        ),
        Mistake(
            "loop_joined_along_tokens",
            "You join the heads along the tokens or the sentences: there come out too many of those.",
            _loop_with(join=lambda heads: torch.cat(heads, 1)),
            _loop_with(join=lambda heads: torch.cat(heads, 0)),
        ),
        Mistake(
            "loop_features_interleaved",
            "Your features alternate between the heads. Those of head 0 come first, together.",
            _loop_with(join=lambda heads: torch.stack(heads, -1).flatten(-2)),
            read=read.BACK,
        ),
        Mistake(
            "loop_added_up",
            "You add the heads up, or average them. Side by side nothing is lost.",
            _loop_with(join=lambda heads: sum(heads)),
            _loop_with(join=lambda heads: sum(heads) / len(heads)),
        ),
        Mistake(
            "loop_last_head_alone",
            "Only one head is left at the end of your loop.",
            _loop_with(join=lambda heads: heads[-1]),
            _loop_with(join=lambda heads: heads[0]),
        ),
        Mistake(
            "loop_one_slice_for_all",
            "All your heads use the same slice of the weights.",
            _loop_with(rows=lambda w, i, d: w[:d]),
            _loop_with(rows=lambda w, i, d: w[-d:]),
        ),
        Mistake(
            "loop_rows_interleaved",
            "Your head takes every h-th row of the weights. Its rows are neighbours.",
            _loop_with(rows=lambda w, i, d: w[i :: w.size(0) // d]),
        ),
        Mistake(
            "loop_rows_overlap",
            "Your slices begin one row after the other. Each begins where the one before ends.",
            _loop_with(rows=lambda w, i, d: w[i : i + d]),
        ),
        Mistake(
            "loop_reversed",
            "Your heads stand in the other order: head 0 comes first.",
            _loop_with(join=lambda heads: torch.cat(heads[::-1], -1)),
        ),
        Mistake(
            "loop_without_heads",
            "You attend once, with all features: that is one head of the full width.",
            lambda x, w_q, w_k, w_v, num_heads: reference_attention(x @ w_q.T, x @ w_k.T, x @ w_v.T)[0],
            read=read.ONE,
        ),
        Mistake(
            "loop_scale_of_the_model",
            "The scores are divided by the root of the width of the whole layer. A head divides by that of its own.",
            _by_root_of_the_model,
            read=read.SCALE,
        ),
        Mistake("loop_without_scale", "The scores are not divided by the root of the width of a head.", _without_scale, read=read.SCALE),
        Mistake(
            "loop_roles_mixed_up",
            "Two of the three projections are the same, or exchanged.",
            *(
                lambda x, q, k, v, h, order=order: _loop(x, *((q, k, v)[i] for i in order), h)
                for order in ((0, 0, 2), (1, 1, 2), (0, 1, 0), (0, 1, 1), (0, 2, 2), (1, 0, 2), (0, 2, 1), (0, 0, 0))
            ),
            read=read.PROJECT,
        ),
        Mistake(
            "loop_values_not_projected",
            "The input is mixed where the projected values should be.",
            lambda x, q, k, v, h: _loop(x, q, k, torch.eye(x.size(-1)), h),
            read=read.PROJECT,
        ),
    ],
)

split_heads = Exercise(
    "split_heads",
    signature="x num_heads",
    expects="one tensor (B, h, T, d_k): head i holds features i * d_k to (i + 1) * d_k of every token.",
    reference=reference_split,
    parts=one_tensor("heads"),
    read=read.CUT,
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
            view_split,
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
            "You fold the heads into the batch and out again without moving an axis: sentences, heads and tokens get mixed.",
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
            "split_still_folded",
            "Your heads are folded into the batch, (B * h, T, d_k). Asked for are four axes.",
            lambda x, h: reference_split(x, h).flatten(0, 1),
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
    ],
)

merge_heads = Exercise(
    "merge_heads",
    signature="x",
    expects="one tensor (B, T, h * d_k): for every token the features of head 0, then of head 1, and so on.",
    reference=reference_merge,
    parts=one_tensor("merged heads"),
    read=read.BACK,
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
            lambda x: x.permute(0, 2, 1, 3).contiguous(),
        ),
        Mistake("merge_heads_reversed", "The heads are joined in another order.", lambda x: reference_merge(x.flip(1))),
    ],
)

_QUERY, _KEY, _VALUE = normal(3, 4, 12, seed=83), normal(3, 6, 12, seed=84), normal(3, 6, 12, seed=85)
_SELF = normal(4, 5, 12, seed=86)
_CAUSAL = causal_mask(5).expand(4, 5, 5)

heads_attention = Exercise(
    "heads_attention",
    signature="query key value num_heads mask",
    expects="a pair (output, weights): output (B, T_q, d_model) and weights (B, h, T_q, T_k), one table for each head.",
    reference=heads_with,
    parts=output_and_weights,
    read=read.LOOP,
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
    mistakes=head_mistakes(heads_with),
)


def _sum(heads, weight):
    return reference_merge(heads) @ weight.transpose(0, 1)


def _terms(heads, blocks):
    return sum(heads[:, i] @ block for i, block in enumerate(blocks))


sum_over_heads = Exercise(
    "sum_over_heads",
    signature="heads weight",
    expects="one tensor (B, T, d_out): every head through its own block of the weight, added up.",
    reference=_sum,
    parts=one_tensor("output"),
    read=read.SUM,
    probes=[
        Probe("4 heads of 3 features to 7", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92))),
        Probe("a square weight", (normal(2, 4, 5, 3, seed=93), normal(12, 12, seed=94))),
        Probe("as many tokens as heads", (normal(2, 4, 4, 3, seed=95), normal(12, 12, seed=96))),
        Probe("one head", (normal(2, 1, 5, 6, seed=97), normal(4, 6, seed=98))),
        Probe("gradients", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92)), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
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
        ),
        Mistake(
            "sum_first_block_for_all",
            "All heads go through the same block.",
            lambda h, w: _terms(h, [w.T[: h.size(-1)]] * h.size(1)),
            lambda h, w: h.sum(1) @ w.T[: h.size(-1)],
        ),
        Mistake("sum_mean", "You average over the heads. Their terms add up.", lambda h, w: _sum(h, w) / h.size(1)),
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
        Mistake("sum_reversed", "The heads meet the blocks in another order.", lambda h, w: _sum(h.flip(1), w)),
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
    ],
)


def _by_heads(x, num_heads):
    return heads_with()(x, x, x, num_heads)[0]


bug_splitting = BugHunt(
    "bug_splitting",
    signature="x num_heads",
    expects="the arguments (x, num_heads) of a call on which the function gives a wrong output.",
    reference=_by_heads,
    buggy=planted.attention_by_heads,
    read=read.CUT,
    kinds={"num_heads": "count"},
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
