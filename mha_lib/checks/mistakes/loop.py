"""The known mistakes in running heads in a loop, each on its own slice of the weights."""

import torch

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import read
from mha_lib.checks.case import Mistake
from mha_lib.checks.recipe import heads_with, times_of


def _looped(
    x, weights, num_heads, rows=lambda w, i, d: w[i * d : (i + 1) * d], join=lambda heads: torch.cat(heads, -1)
):
    """Chapter 1's head, num_heads times, each on its own slice of the weights; joined."""
    width, heads = x.size(-1) // num_heads, []
    for i in range(num_heads):
        q, k, v = (x @ rows(w, i, width).transpose(0, 1) for w in weights)
        heads.append(reference_attention(q, k, v)[0])
    return join(heads)


def loop(x, w_q, w_k, w_v, num_heads):
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


def _divided_by_width(x, w_q, w_k, w_v, num_heads):
    return heads_with(scale=times_of(lambda d_k, heads, keys: 1 / d_k))(x @ w_q.T, x @ w_k.T, x @ w_v.T, num_heads)[0]


def _by_pieces_of_the_sentence(axis):
    def loop(x, w_q, w_k, w_v, num_heads):
        pieces = zip(*((x @ w.T).chunk(num_heads, 1) for w in (w_q, w_k, w_v)))
        return torch.cat([reference_attention(q, k, v)[0] for q, k, v in pieces], axis)

    return loop


def _whole(*wide, give=0):
    """Return the mimic in which some projections keep their full width; it joins part give of every pair."""

    def loop(x, w_q, w_k, w_v, num_heads):
        width, heads = x.size(-1) // num_heads, []
        for i in range(num_heads):
            here = slice(i * width, (i + 1) * width)
            q, k, v = (x @ (w if n in wide else w[here]).T for n, w in zip("qkv", (w_q, w_k, w_v)))
            heads.append(reference_attention(q, k, v)[give])
        return torch.cat(heads, -1)

    return loop


def _overwriting(x, w_q, w_k, w_v, num_heads):
    width, heads = x.size(-1) // num_heads, []
    for i in range(num_heads):
        x, _ = reference_attention(*(x @ w[i * width : (i + 1) * width].T for w in (w_q, w_k, w_v)))
        heads.append(x)
    return torch.cat(heads, -1)


def _count_for_width(x, w_q, w_k, w_v, num_heads):
    return loop(x, w_q, w_k, w_v, x.size(-1) // num_heads)


LOOP = (
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
        "You multiply with a slice of the weight as it lies: its rows are outputs, and x meets them instead of its "
        "columns.",
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
        "loop_joined_without_moving",
        "You reshape your heads where their axis must move first: it stands in front of the tokens, and pieces of "
        "several "
        "tokens land in one.",
        _loop_with(join=lambda heads: torch.stack(heads, 1).reshape(*heads[0].shape[:2], -1)),
        _loop_with(join=lambda heads: torch.stack(heads).reshape(*heads[0].shape[:2], -1)),
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
    Mistake(
        "loop_scale_twice",
        "In all, the scores are divided by the width of a head: once by it, or twice by its root. One root is enough, "
        "and "
        "mha_lib.attention takes it.",
        _divided_by_width,
        read=read.SCALE,
    ),
    Mistake(
        "loop_pieces_of_the_sentence",
        "You cut the sentence: each piece of it attends to itself alone. Every head attends to all tokens.",
        _by_pieces_of_the_sentence(1),
        _by_pieces_of_the_sentence(-1),
        read=read.CUT,
    ),
    Mistake(
        "loop_of_full_width",
        "Some of the three projections keep their full width in every head. All three are cut.",
        *(_whole(*wide) for wide in ("v", "qk", "qkv")),
    ),
    Mistake(
        "loop_joins_the_weights",
        "You keep the weights of every head. Its output, the mixed values, is asked for.",
        _whole(give=1),
    ),
    Mistake(
        "loop_slice_too_short",
        "Your slices are one row too short: where a slice ends is no part of it.",
        _loop_with(rows=lambda w, i, d: w[i * d : (i + 1) * d - 1]),
    ),
    Mistake(
        "loop_begins_with_the_second",
        "You count from 1: head 0 is left out, and behind the last head there is nothing.",
        _loop_with(rows=lambda w, i, d: w[(i + 1) * d : (i + 2) * d]),
    ),
    Mistake(
        "loop_overwrites_its_input",
        "Inside the loop you overwrite the input with a head's output, and the next head reads that.",
        _overwriting,
    ),
    Mistake(
        "loop_count_and_width_swapped",
        "You make d_k heads of num_heads features. It should be num_heads heads of d_k features.",
        _count_for_width,
    ),
    Mistake(
        "loop_without_scale",
        "The scores are not divided by the root of the width of a head.",
        _without_scale,
        read=read.SCALE,
    ),
    Mistake(
        "loop_roles_mixed_up",
        "Two of the three projections are the same, or exchanged.",
        *(
            lambda x, q, k, v, h, order=order: loop(x, *((q, k, v)[i] for i in order), h)
            for order in ((0, 0, 2), (1, 1, 2), (0, 1, 0), (0, 1, 1), (0, 2, 2), (1, 0, 2), (0, 2, 1), (0, 0, 0))
        ),
        read=read.PROJECT,
    ),
    Mistake(
        "loop_values_not_projected",
        "The input is mixed where the projected values should be.",
        lambda x, q, k, v, h: loop(x, q, k, torch.eye(x.size(-1)), h),
        read=read.PROJECT,
    ),
)
