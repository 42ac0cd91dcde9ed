"""The known mistakes in attention whose query heads share key heads."""

from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import WRONG, Law, Mistake
from mha_lib.checks.classes.exercise import ClassSpecimen
from mha_lib.checks.explain import its_words
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import CORE, Recipe, attend, by_head, fill, linear, on, times_of
from mha_lib.heads import merge_heads, split_heads


def shared(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, dim=1)


def in_turn(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, 1, 1)


def first_for_all(x: Tensor, times: int) -> Tensor:
    return x[:, :1].expand(-1, x.size(1) * times, -1, -1)


def mean_for_all(x: Tensor, times: int) -> Tensor:
    return x.mean(1, keepdim=True).expand(-1, x.size(1) * times, -1, -1)


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
    share_keys=shared,
    share_values=shared,
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
    """Return a law about head counts that do not fit: accepted, or refused with another error than a ValueError."""

    def test(specimen: ClassSpecimen):
        for d_model, heads, kv_heads in ((12, 6, 4), (10, 4, 2)):
            x = normal(1, 3, d_model, seed=611)
            error = specimen.guard.call(lambda: specimen.answer(d_model, heads, kv_heads)(x)).error
            if error is None if not refused_otherwise else not isinstance(error, (ValueError, type(None))):
                yours = {"yours": its_words(error)} if error is not None else {}
                return (
                    {"seen on": f"d_model = {d_model}, num_heads = {heads}, num_kv_heads = {kv_heads}"}
                    | yours
                    | {"expected": "ValueError"}
                )
        return None

    return Law(test)


GROUPED = (
    Mistake(
        "grouped_keys_as_wide_as_queries",
        "Your keys or values are as wide as the queries: nothing is saved. They have num_kv_heads heads of the "
        "same d_k.",
        _shape("w_k", lambda out, into: out == 12 == into),
        _shape("w_v", lambda out, into: out == 12 == into),
    ),
    Mistake(
        "grouped_one_head_each",
        "Your keys or values are as wide as one head, or as one number a head. They have num_kv_heads heads of "
        "d_k features.",
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
    Mistake(
        "grouped_in_turn",
        "The key heads come in turn, 0 1 0 1. Neighbouring query heads share a key head: 0 0 1 1.",
        _sharing(in_turn),
        read=read.WHICH,
    ),
    Mistake(
        "grouped_keys_and_values_apart",
        "Keys and values are shared in different ways: a query head reads the key of one head and the value of "
        "another.",
        grouped_with(share_keys=in_turn),
        grouped_with(share_values=in_turn),
        read=read.WHICH,
    ),
    Mistake("grouped_first_for_all", "Every query head reads key head 0.", _sharing(first_for_all), read=read.WHICH),
    Mistake(
        "grouped_mean_for_all",
        "Every query head reads the mean of the key heads.",
        _sharing(mean_for_all),
        read=read.WHICH,
    ),
    Mistake(
        "grouped_value_is_key",
        "Keys and values go through the same linear.",
        grouped_with(of_value=lambda: "w_k"),
        grouped_with(of_key=lambda: "w_v"),
    ),
    Mistake(
        "grouped_exchanged",
        "The linears of keys and values have changed places.",
        grouped_with(of_key=lambda: "w_v", of_value=lambda: "w_k"),
    ),
    Mistake(
        "grouped_cut_by_view",
        "Your key heads cut the sentence instead of the features.",
        grouped_with(cut=_view),
        read=read.CUT,
    ),
    Mistake(
        "grouped_interleaved",
        "Your key heads take every h-th feature. A head is a block of neighbouring features.",
        grouped_with(cut=_interleaved),
        read=read.CUT,
    ),
    Mistake(
        "grouped_scale_d_model",
        "You divide by the root of d_model. The sum that makes a score runs over the d_k features of one head.",
        grouped_with(scale=times_of(lambda d, h, t: (d * h) ** -0.5)),
        read=read.LOOP,
    ),
    Mistake(
        "grouped_no_output",
        "There is no W_O at the end, or it is not used.",
        grouped_with(output=lambda w, merged: merged),
        read=read.MIX,
    ),
    Mistake(
        "grouped_merge_view",
        "You join the heads without moving their axis back.",
        grouped_with(merge=lambda x: x.reshape(x.size(0), x.size(2), -1)),
        read=read.BACK,
    ),
    Mistake(
        "grouped_mask_without_head_axis",
        "The mask meets the scores without a head axis: its sentences line up with the heads.",
        grouped_with(hide=fill),
        read=read.HEAD_AXIS,
    ),
    Mistake("grouped_uneven_accepted", "Here the head counts do not fit, and your class says nothing.", _uneven(False)),
    Mistake(
        "grouped_other_error",
        "Head counts that do not fit must be refused with a ValueError. Yours come to another error.",
        _uneven(True),
    ),
    *on(
        grouped_with,
        MASKING,
        without=("mask_tilde_on_int", "mask_square_slice", "mask_softmax_wrong_with_minus_inf"),
        hide=by_head,
    ),
    *on(grouped_with, [m for m in ATTENTION if m.read != read.STABLE] + list(SCALING)),
)
