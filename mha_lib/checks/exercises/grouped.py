"""The checks of chapter 11: sharing key heads, the grouped layer, averaging heads, and a hunt."""

import torch
from torch import Tensor

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import WRONG, Law, Mistake, Probe
from mha_lib.checks.classes.exercise import ClassExercise, ClassSpecimen
from mha_lib.checks.compare import first_of, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.explain import its_words
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered, padding
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import CORE, Recipe, attend, by_head, fill, linear, on, times_of
from mha_lib.heads import merge_heads, split_heads
from mha_lib.masks import causal_mask


def _shared(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, dim=1)


def _in_turn(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, 1, 1)


def _first(x: Tensor, times: int) -> Tensor:
    return x[:, :1].expand(-1, x.size(1) * times, -1, -1)


def _mean(x: Tensor, times: int) -> Tensor:
    return x.mean(1, keepdim=True).expand(-1, x.size(1) * times, -1, -1)


def _first_copy(x: Tensor, times: int) -> Tensor:
    return _shared(x, times) * (torch.arange(x.size(1) * times) % times == 0)[:, None, None]


def _cells(label: str, *shape: int, times: int) -> Probe:
    return Probe(label, (numbered(*shape), times), cells=True)


repeat_heads = Exercise(
    "repeat_heads",
    signature="x times",
    expects="one tensor (B, h * times, T, d_k): every head of x as often as said, its copies beside each other.",
    reference=_shared,
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
        Mistake("repeat_in_turn", "Your heads come in turn, 0 1 0 1: query head 1 would read key head 1. Neighbouring query heads share a key head: 0 0 1 1.", _in_turn),
        Mistake("repeat_tokens", "You repeat the tokens: the text has become longer, and there are as many heads as before.", lambda x, n: x.repeat_interleave(n, 2), lambda x, n: x.repeat(1, 1, n, 1)),
        Mistake("repeat_features", "You repeat the features: the heads have become wider.", lambda x, n: x.repeat_interleave(n, 3), lambda x, n: x.repeat(1, 1, 1, n)),
        Mistake("repeat_sentences", "You repeat the sentences: the batch has become larger.", lambda x, n: x.repeat_interleave(n, 0), lambda x, n: x.repeat(n, 1, 1, 1)),
        Mistake("repeat_first_head", "All your heads are head 0.", _first),
        Mistake("repeat_mean", "All your heads are the mean of the heads. Each is a copy of one.", _mean),
        Mistake("repeat_new_axis", "The copies stand on an axis of their own. Asked for are four axes.", lambda x, n: x.unsqueeze(2).expand(-1, -1, n, -1, -1), lambda x, n: x.unsqueeze(1).expand(-1, n, -1, -1, -1)),
        Mistake("repeat_not_at_all", "You return the heads as they are.", lambda x, n: x),
        Mistake("repeat_flat", "Without an axis, repeat_interleave repeats every single number, and all stand in one row.", lambda x, n: x.repeat_interleave(n)),
        Mistake("repeat_joined_tokens", "The copies are joined along the tokens, and the axis of the heads is gone.", lambda x, n: _shared(x, n).flatten(1, 2), lambda x, n: _in_turn(x, n).flatten(1, 2)),
        Mistake("repeat_once_too_often", "Every head stands there once too often: `times` counts all that come out, the head itself among them.", lambda x, n: _shared(x, n + 1), lambda x, n: _in_turn(x, n + 1)),
        Mistake("repeat_places_left_empty", "Only one copy of each head is written; the places of the others hold 0.", lambda x, n: _first_copy(x, n)),
        Mistake("repeat_reversed", "The heads stand in reverse.", lambda x, n: _shared(x.flip(1), n)),
    ],
)


def _grouped(steps, note, weights_of, d_model, num_heads, num_kv_heads, x, mask=None):
    weights = weights_of(d_model, num_heads, num_kv_heads)
    q = note("the queries by head", split_heads(linear(weights, "w_q", x), num_heads))
    k = note("the keys by head", steps.cut(linear(weights, steps.of_key(), x), num_kv_heads))
    v = note("the values by head", steps.cut(linear(weights, steps.of_value(), x), num_kv_heads))
    times = num_heads // num_kv_heads
    k, v = note("the shared keys", steps.share_keys(k, times)), note("the shared values", steps.share_values(v, times))
    merged = note("the merged heads", steps.merge(attend(steps, note, q, k, v, mask)[0]))
    return steps.output(weights, merged)


grouped_with = Recipe(
    _grouped,
    **CORE | {"hide": by_head(fill)},
    cut=split_heads,
    of_key=lambda: "w_k",
    of_value=lambda: "w_v",
    share_keys=_shared,
    share_values=_shared,
    merge=merge_heads,
    output=lambda weights, merged: linear(weights, "w_o", merged),
)


def _sharing(share) -> object:
    return grouped_with(share_keys=share, share_values=share)


def _interleaved(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)


def _view(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.size(0), heads, x.size(1), -1)


def _shape(name: str, holds):
    """Return a law about the sizes of a linear in a wrong layer of 12 features, 6 heads of queries and 2 of keys."""

    def test(specimen: ClassSpecimen):
        module = specimen.build(12, 6, 2)
        weight = getattr(getattr(module, name, None), "weight", None)
        if weight is None or weight.dim() != 2 or not holds(*weight.shape):
            return None
        return {"seen on": "d_model = 12, num_heads = 6, num_kv_heads = 2", "yours": f"{name} {tuple(weight.shape)}"}

    return Law(test, WRONG)


def _uneven(refused_otherwise: bool):
    """Return a law about head counts that do not fit: they are accepted, or refused with another error than a ValueError."""

    def test(specimen: ClassSpecimen):
        for d_model, heads, kv_heads in ((12, 6, 4), (10, 4, 2)):
            x = normal(1, 3, d_model, seed=611)
            error = specimen.guard.call(lambda: specimen.answer(d_model, heads, kv_heads)(x)).error
            if error is None if not refused_otherwise else not isinstance(error, (ValueError, type(None))):
                yours = {"yours": its_words(error)} if error is not None else {}
                return {"seen on": f"d_model = {d_model}, num_heads = {heads}, num_kv_heads = {kv_heads}"} | yours | {"expected": "ValueError"}
        return None

    return Law(test)


_KEYS = lambda sizes: sizes["d_model"] // sizes["num_heads"] * sizes["num_kv_heads"]  # noqa: E731
_X, _X_HEADS = normal(3, 5, 12, seed=612), normal(6, 4, 12, seed=613)
_CAUSAL = causal_mask(5).expand(3, 5, 5)

grouped_attention = ClassExercise(
    "grouped_attention",
    signature="d_model num_heads num_kv_heads x mask",
    build_with="d_model num_heads num_kv_heads",
    roles={"w_q": ("d_model", "d_model"), "w_k": (_KEYS, "d_model"), "w_v": (_KEYS, "d_model"), "w_o": ("d_model", "d_model")},
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
    mistakes=[
        Mistake(
            "grouped_keys_as_wide_as_queries",
            "Your keys or values are as wide as the queries: nothing is saved. They have num_kv_heads heads of the same d_k.",
            _shape("w_k", lambda out, into: out == 12 == into),
            _shape("w_v", lambda out, into: out == 12 == into),
        ),
        Mistake(
            "grouped_one_head_each",
            "Your keys or values are as wide as one head, or as one number a head. They have num_kv_heads heads of d_k features.",
            _shape("w_k", lambda out, into: out in (2, 6)),
            _shape("w_v", lambda out, into: out in (2, 6)),
        ),
        Mistake(
            "grouped_sizes_exchanged",
            "The two sizes of a linear are exchanged: how many features go in comes first, and how many come out second.",
            *(_shape(name, lambda out, into: out == 12 and into == 4) for name in ("w_k", "w_v")),
        ),
        Mistake(
            "grouped_w_o_too_narrow",
            "Your W_O takes as many features as the key heads have. The heads that are joined are those of the queries.",
            _shape("w_o", lambda out, into: into != 12),
        ),
        Mistake("grouped_in_turn", "The key heads come in turn, 0 1 0 1. Neighbouring query heads share a key head: 0 0 1 1.", _sharing(_in_turn), read=read.WHICH),
        Mistake("grouped_keys_and_values_apart", "Keys and values are shared in different ways: a query head reads the key of one head and the value of another.", grouped_with(share_keys=_in_turn), grouped_with(share_values=_in_turn), read=read.WHICH),
        Mistake("grouped_first_for_all", "Every query head reads key head 0.", _sharing(_first), read=read.WHICH),
        Mistake("grouped_mean_for_all", "Every query head reads the mean of the key heads.", _sharing(_mean), read=read.WHICH),
        Mistake("grouped_value_is_key", "Keys and values go through the same linear.", grouped_with(of_value=lambda: "w_k"), grouped_with(of_key=lambda: "w_v")),
        Mistake("grouped_exchanged", "The linears of keys and values have changed places.", grouped_with(of_key=lambda: "w_v", of_value=lambda: "w_k")),
        Mistake("grouped_cut_by_view", "Your key heads cut the sentence instead of the features.", grouped_with(cut=_view), read=read.CUT),
        Mistake("grouped_interleaved", "Your key heads take every h-th feature. A head is a block of neighbouring features.", grouped_with(cut=_interleaved), read=read.CUT),
        Mistake("grouped_scale_d_model", "You divide by the root of d_model. The sum that makes a score runs over the d_k features of one head.", grouped_with(scale=times_of(lambda d, h, t: (d * h) ** -0.5)), read=read.LOOP),
        Mistake("grouped_no_output", "There is no W_O at the end, or it is not used.", grouped_with(output=lambda w, merged: merged), read=read.MIX),
        Mistake("grouped_merge_view", "You join the heads without moving their axis back.", grouped_with(merge=lambda x: x.reshape(x.size(0), x.size(2), -1)), read=read.BACK),
        Mistake("grouped_mask_without_head_axis", "The mask meets the scores without a head axis: its sentences line up with the heads.", grouped_with(hide=fill), read=read.HEAD_AXIS),
        Mistake("grouped_uneven_accepted", "Here the head counts do not fit, and your class says nothing.", _uneven(False)),
        Mistake("grouped_other_error", "Head counts that do not fit must be refused with a ValueError. Yours come to another error.", _uneven(True)),
        *on(grouped_with, MASKING, without=("mask_tilde_on_int", "mask_square_slice", "mask_softmax_wrong_with_minus_inf"), hide=by_head),
        *on(grouped_with, [m for m in ATTENTION if m.read != read.STABLE] + list(SCALING)),
    ],
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
        Mistake("average_in_turn", "You average heads that stand apart, every n-th. Those that will share a key head are neighbours.", lambda w, h, n: w.unflatten(0, (h // n, n, -1)).mean(0).flatten(0, 1)),
        Mistake("average_counts_exchanged", "The number of groups and the number of heads in a group are exchanged.", lambda w, h, n: w.unflatten(0, (h // n, n, -1)).mean(1).flatten(0, 1)),
        Mistake("average_features", "You average the features of each head. The heads of a group are averaged, feature by feature.", lambda w, h, n: _by_group(w, h, n).mean(2).flatten(0, 1)),
        Mistake("average_overlapping", "Your groups overlap: each begins one head behind the one before it, not behind its last head.", lambda w, h, n: torch.cat([torch.stack(w.split(w.size(0) // h)[g : g + h // n]).mean(0) for g in range(n)])),
        Mistake("average_every_nth_row", "You pick every n-th row. The rows of a head are neighbours, and whole heads are averaged.", lambda w, h, n: w[:: h // n]),
        Mistake("average_largest", "You take the largest, or the one in the middle, of each group. Asked for is the mean.", lambda w, h, n: _by_group(w, h, n).amax(1).flatten(0, 1), lambda w, h, n: _by_group(w, h, n).median(1).values.flatten(0, 1)),
        Mistake("average_rows_end_to_end", "The rows of a head are laid end to end in one row. Every feature keeps a row of its own.", lambda w, h, n: _by_group(w, h, n).mean(1).flatten(1)),
        Mistake("average_sum", "You add the heads of a group up. Asked for is their mean.", lambda w, h, n: _by_group(w, h, n).sum(1).flatten(0, 1)),
        Mistake("average_first", "You keep one head of each group. Asked for is the mean of all.", lambda w, h, n: _by_group(w, h, n)[:, 0].flatten(0, 1), lambda w, h, n: _by_group(w, h, n)[:, -1].flatten(0, 1)),
        Mistake("average_first_heads", "You keep the first heads and drop the others.", lambda w, h, n: w[: w.size(0) // h * n]),
        Mistake("average_rows", "You average neighbouring features, not heads: feature i of a head belongs to feature i of the next.", lambda w, h, n: w.unflatten(0, (-1, h // n)).mean(1)),
        Mistake("average_columns", "You average along the inputs. The heads lie along the outputs, the rows.", lambda w, h, n: w.mean(1), lambda w, h, n: w.mean(1, keepdim=True)),
        Mistake("average_all", "You average all heads into one, and repeat it.", lambda w, h, n: w.unflatten(0, (h, -1)).mean(0).repeat(n, 1)),
        Mistake("average_not_joined", "The heads still have an axis of their own. Asked for is one matrix.", lambda w, h, n: _by_group(w, h, n).mean(1)),
        Mistake("average_not_fewer", "Every head got the mean of its group, but there are as many as before.", lambda w, h, n: _by_group(w, h, n).mean(1, keepdim=True).expand_as(_by_group(w, h, n)).flatten(0, 2)),
        Mistake("average_nothing", "You return the weight as it is.", lambda w, h, n: w),
    ],
)


def _right(query, key, value):
    times = query.size(1) // key.size(1)
    return reference_attention(query, _shared(key, times), _shared(value, times))[0]


bug_grouped = BugHunt(
    "bug_grouped",
    signature="query key value",
    expects="(query, key, value), the query (B, h, T, d_k), key and value (B, h_kv, T, d_k), on which the output is wrong.",
    reference=_right,
    buggy=planted.attention_grouped,
    read=read.WHICH,
    lucky=(
        Lucky("shows_uneven_heads", "The heads of the query must be a multiple of those of the key.", lambda query, key, value: query.size(1) % key.size(1) != 0),
        Lucky("hidden_by_one_key_head", "With one key head all query heads read it.", lambda query, key, value: key.size(1) == 1),
        Lucky("hidden_by_as_many_heads", "With as many key heads as query heads each has its own.", lambda query, key, value: key.size(1) == query.size(1)),
        Lucky(
            "hidden_by_equal_key_heads",
            "All key heads and value heads hold the same here, so it does not matter which is read.",
            lambda query, key, value: bool(torch.allclose(key, key[:, :1].expand_as(key)) and torch.allclose(value, value[:, :1].expand_as(value))),
        ),
        Lucky(
            "hidden_by_equal_values",
            "In each sentence all values are alike here, so every mixture of them is the same.",
            lambda query, key, value: bool(torch.allclose(value, value[:, :1, :1].expand_as(value))),
        ),
        Lucky("hidden_by_one_token", "With one key its weight is 1; look at the values, then.", lambda query, key, value: key.size(-2) == 1),
    ),
)
