"""The checks of chapter 11: sharing key heads, the grouped layer, averaging heads, and a hunt."""

import torch
from torch import Tensor

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.compare import first_of, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered, padding
from mha_lib.checks.mistakes.grouped import GROUPED, first_for_all, grouped_with, in_turn, mean_for_all, shared
from mha_lib.masks import causal_mask


def _first_copy(x: Tensor, times: int) -> Tensor:
    return shared(x, times) * (torch.arange(x.size(1) * times) % times == 0)[:, None, None]


def _cells(label: str, *shape: int, times: int) -> Probe:
    return Probe(label, (numbered(*shape), times), cells=True)


repeat_heads = Exercise(
    "repeat_heads",
    signature="x times",
    expects="one tensor (B, h * times, T, d_k): every head of x as often as said, its copies beside each other.",
    reference=shared,
    parts=one_tensor("heads"),
    read=read.WHICH,
    probes=[
        _cells("2 heads, 3 times", 2, 2, 4, 5, times=3),
        _cells("3 heads, twice", 2, 3, 4, 5, times=2),
        _cells("as many sentences as heads", 3, 3, 2, 4, times=2),
        _cells("one head", 2, 1, 3, 4, times=5),
        _cells("once", 2, 3, 4, 5, times=1),
        Probe("gradients", (normal(2, 2, 4, 5, seed=601), 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "repeat_in_turn",
            "Your heads come in turn, 0 1 0 1: query head 1 would read key head 1. Neighbouring query heads share a "
            "key head: 0 0 1 1.",
            in_turn,
        ),
        Mistake(
            "repeat_tokens",
            "You repeat the tokens: the text has become longer, and there are as many heads as before.",
            lambda x, n: x.repeat_interleave(n, 2),
            lambda x, n: x.repeat(1, 1, n, 1),
        ),
        Mistake(
            "repeat_features",
            "You repeat the features: the heads have become wider.",
            lambda x, n: x.repeat_interleave(n, 3),
            lambda x, n: x.repeat(1, 1, 1, n),
        ),
        Mistake(
            "repeat_sentences",
            "You repeat the sentences: the batch has become larger.",
            lambda x, n: x.repeat_interleave(n, 0),
            lambda x, n: x.repeat(n, 1, 1, 1),
        ),
        Mistake("repeat_first_head", "All your heads are head 0.", first_for_all),
        Mistake("repeat_mean", "All your heads are the mean of the heads. Each is a copy of one.", mean_for_all),
        Mistake(
            "repeat_new_axis",
            "The copies stand on an axis of their own. Asked for are four axes.",
            lambda x, n: x.unsqueeze(2).expand(-1, -1, n, -1, -1),
            lambda x, n: x.unsqueeze(1).expand(-1, n, -1, -1, -1),
        ),
        Mistake("repeat_not_at_all", "You return the heads as they are.", lambda x, n: x),
        Mistake(
            "repeat_flat",
            "Without an axis, repeat_interleave repeats every single number, and all stand in one row.",
            lambda x, n: x.repeat_interleave(n),
        ),
        Mistake(
            "repeat_joined_tokens",
            "The copies are joined along the tokens, and the axis of the heads is gone.",
            lambda x, n: shared(x, n).flatten(1, 2),
            lambda x, n: in_turn(x, n).flatten(1, 2),
        ),
        Mistake(
            "repeat_once_too_often",
            "Every head stands there once too often: `times` counts all that come out, the head itself among them.",
            lambda x, n: shared(x, n + 1),
            lambda x, n: in_turn(x, n + 1),
        ),
        Mistake(
            "repeat_places_left_empty",
            "Only one copy of each head is written; the places of the others hold 0.",
            lambda x, n: _first_copy(x, n),
        ),
        Mistake("repeat_reversed", "The heads stand in reverse.", lambda x, n: shared(x.flip(1), n)),
    ],
)


_KEYS = lambda sizes: sizes["d_model"] // sizes["num_heads"] * sizes["num_kv_heads"]  # noqa: E731
_X, _X_HEADS = normal(3, 5, 12, seed=612), normal(6, 4, 12, seed=613)
_CAUSAL = causal_mask(5).expand(3, 5, 5)

grouped_attention = ClassExercise(
    "grouped_attention",
    signature="d_model num_heads num_kv_heads x mask",
    build_with="d_model num_heads num_kv_heads",
    roles={
        "w_q": ("d_model", "d_model"),
        "w_k": (_KEYS, "d_model"),
        "w_v": (_KEYS, "d_model"),
        "w_o": ("d_model", "d_model"),
    },
    expects="a class GroupedAttention(d_model, num_heads, num_kv_heads) with the linears w_q, w_k, w_v and w_o, whose "
    "call (x, mask=None) gives (B, T, d_model).",
    reference=grouped_with,
    parts=first_of("output"),
    read=read.GROUPED,
    probes=[
        Probe("6 heads over 2", (12, 6, 2, _X, None)),
        Probe("6 heads over 3", (12, 6, 3, _X, None)),
        Probe("a causal mask", (12, 6, 2, _X, _CAUSAL)),
        Probe("as many sentences as heads, with padding", (12, 6, 2, _X_HEADS, padding(6, 4))),
        Probe("one key head", (12, 6, 1, _X, None)),
        Probe("as many key heads as heads", (12, 6, 6, _X, None)),
        Probe("gradients", (12, 6, 2, _X, None), gradient=True, tolerance=1e-4),
    ],
    mistakes=GROUPED,
)


def _averaged(weight: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    return weight.unflatten(0, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(1).flatten(0, 1)


def _by_group(weight, num_heads, num_kv_heads):
    return weight.unflatten(0, (num_kv_heads, num_heads // num_kv_heads, -1))


average_heads = Exercise(
    "average_heads",
    signature="weight num_heads num_kv_heads",
    expects="one tensor (num_kv_heads * d_k, d_model): the weight of the keys with neighbouring heads averaged.",
    reference=_averaged,
    parts=one_tensor("weight"),
    read=read.FEWER,
    probes=[
        Probe("6 heads of 3 to 2", (normal(18, 7, seed=621), 6, 2)),
        Probe("6 heads of 3 to 3", (normal(18, 7, seed=622), 6, 3)),
        Probe("8 heads of 2 to 2", (normal(16, 5, seed=623), 8, 2)),
        Probe("all to one", (normal(12, 7, seed=624), 4, 1)),
        Probe("none fewer", (normal(12, 7, seed=625), 4, 4)),
        Probe("gradients", (normal(18, 7, seed=621), 6, 2), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "average_in_turn",
            "You average heads that stand apart, every n-th. Those that will share a key head are neighbours.",
            lambda w, h, n: w.unflatten(0, (h // n, n, -1)).mean(0).flatten(0, 1),
        ),
        Mistake(
            "average_counts_exchanged",
            "The number of groups and the number of heads in a group are exchanged.",
            lambda w, h, n: w.unflatten(0, (h // n, n, -1)).mean(1).flatten(0, 1),
        ),
        Mistake(
            "average_features",
            "You average the features of each head. The heads of a group are averaged, feature by feature.",
            lambda w, h, n: _by_group(w, h, n).mean(2).flatten(0, 1),
        ),
        Mistake(
            "average_overlapping",
            "Your groups overlap: each begins one head behind the one before it, not behind its last head.",
            lambda w, h, n: torch.cat([torch.stack(w.split(w.size(0) // h)[g : g + h // n]).mean(0) for g in range(n)]),
        ),
        Mistake(
            "average_every_nth_row",
            "You pick every n-th row. The rows of a head are neighbours, and whole heads are averaged.",
            lambda w, h, n: w[:: h // n],
        ),
        Mistake(
            "average_largest",
            "You take the largest, or the one in the middle, of each group. Asked for is the mean.",
            lambda w, h, n: _by_group(w, h, n).amax(1).flatten(0, 1),
            lambda w, h, n: _by_group(w, h, n).median(1).values.flatten(0, 1),
        ),
        Mistake(
            "average_rows_end_to_end",
            "The rows of a head are laid end to end in one row. Every feature keeps a row of its own.",
            lambda w, h, n: _by_group(w, h, n).mean(1).flatten(1),
        ),
        Mistake(
            "average_sum",
            "You add the heads of a group up. Asked for is their mean.",
            lambda w, h, n: _by_group(w, h, n).sum(1).flatten(0, 1),
        ),
        Mistake(
            "average_first",
            "You keep one head of each group. Asked for is the mean of all.",
            lambda w, h, n: _by_group(w, h, n)[:, 0].flatten(0, 1),
            lambda w, h, n: _by_group(w, h, n)[:, -1].flatten(0, 1),
        ),
        Mistake(
            "average_first_heads",
            "You keep the first heads and drop the others.",
            lambda w, h, n: w[: w.size(0) // h * n],
        ),
        Mistake(
            "average_rows",
            "You average neighbouring features, not heads: feature i of a head belongs to feature i of the next.",
            lambda w, h, n: w.unflatten(0, (-1, h // n)).mean(1),
        ),
        Mistake(
            "average_columns",
            "You average along the inputs. The heads lie along the outputs, the rows.",
            lambda w, h, n: w.mean(1),
            lambda w, h, n: w.mean(1, keepdim=True),
        ),
        Mistake(
            "average_all",
            "You average all heads into one, and repeat it.",
            lambda w, h, n: w.unflatten(0, (h, -1)).mean(0).repeat(n, 1),
        ),
        Mistake(
            "average_not_joined",
            "The heads still have an axis of their own. Asked for is one matrix.",
            lambda w, h, n: _by_group(w, h, n).mean(1),
        ),
        Mistake(
            "average_not_fewer",
            "Every head got the mean of its group, but there are as many as before.",
            lambda w, h, n: _by_group(w, h, n).mean(1, keepdim=True).expand_as(_by_group(w, h, n)).flatten(0, 2),
        ),
        Mistake("average_nothing", "You return the weight as it is.", lambda w, h, n: w),
    ],
)


def _right(query, key, value):
    times = query.size(1) // key.size(1)
    return reference_attention(query, shared(key, times), shared(value, times))[0]


bug_grouped = BugHunt(
    "bug_grouped",
    signature="query key value",
    expects="(query, key, value), the query (B, h, T, d_k), key and value (B, h_kv, T, d_k), on which the output is "
    "wrong.",
    reference=_right,
    buggy=planted.attention_grouped,
    read=read.WHICH,
    lucky=(
        Lucky(
            "shows_uneven_heads",
            "The heads of the query must be a multiple of those of the key.",
            lambda query, key, value: query.size(1) % key.size(1) != 0,
        ),
        Lucky(
            "hidden_by_one_key_head",
            "With one key head all query heads read it.",
            lambda query, key, value: key.size(1) == 1,
        ),
        Lucky(
            "hidden_by_as_many_heads",
            "With as many key heads as query heads each has its own.",
            lambda query, key, value: key.size(1) == query.size(1),
        ),
        Lucky(
            "hidden_by_equal_key_heads",
            "All key heads and value heads hold the same here, so it does not matter which is read.",
            lambda query, key, value: bool(
                torch.allclose(key, key[:, :1].expand_as(key)) and torch.allclose(value, value[:, :1].expand_as(value))
            ),
        ),
        Lucky(
            "hidden_by_equal_values",
            "In each sentence all values are alike here, so every mixture of them is the same.",
            lambda query, key, value: bool(torch.allclose(value, value[:, :1, :1].expand_as(value))),
        ),
        Lucky(
            "hidden_by_one_token",
            "With one key its weight is 1; look at the values, then.",
            lambda query, key, value: key.size(-2) == 1,
        ),
    ),
)
