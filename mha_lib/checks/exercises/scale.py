"""The checks of chapter 2: how scores spread, the division, and a softmax that does not overflow."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Law, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, a, one_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise, Specimen
from mha_lib.checks.exercises.attention import ATTENTION_PROBES
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import attention_with


def _one_number(name: str) -> Callable[[object], dict[str, Tensor]]:
    """Return a reader for results that are one number, drawn or calculated."""

    def read_it(value: object) -> dict[str, Tensor]:
        refuse_none(value)
        try:
            return {name: torch.tensor(float(value), dtype=torch.float64)}
        except (TypeError, ValueError, RuntimeError):
            raise Unfit("wrong_type", f"You returned {a(value)}; asked for is one number.") from None

    return read_it


def _measured(d_k: int) -> float:
    return math.sqrt(d_k)


def _numbers(trials) -> list[tuple[int, float]]:
    """Return d_k and the number that was given, for every input."""
    return [(t.probe.args[0], float(n)) for t in trials for n in t.seen.parts.values()]


def _ratios(trials) -> list[float]:
    """Return by how much each number differs from the root of d_k, as a factor."""
    return [spread / math.sqrt(d) for d, spread in _numbers(trials)]


def _is_near_zero(trials) -> bool:
    """Numbers that lie around 0 and would shrink with more draws: means."""
    parts = [(float(n), float(t.want.parts[name])) for t in trials for name, n in t.seen.parts.items()]
    return len(parts) > 2 and all(abs(got) < 0.15 * want for got, want in parts)


def _hardly_grows(trials) -> bool:
    numbers = [n for _, n in _numbers(trials)]
    return len(numbers) > 2 and min(numbers) > 0 and max(numbers) < 1.35 * min(numbers)


def _is_nan(trials) -> bool:
    numbers = [n for _, n in _numbers(trials)]
    return bool(numbers) and all(math.isnan(n) for n in numbers)


def _is_root_times_a_number(trials) -> bool:
    ratios = _ratios(trials)
    return len(ratios) > 2 and min(ratios) > 0 and max(ratios) < 1.06 * min(ratios)


def _scatters(trials) -> bool:
    ratios = _ratios(trials)
    return len(ratios) > 2 and all(0.4 < r < 1.7 for r in ratios) and any(r < 1 for r in ratios) and any(r > 1 for r in ratios)


def _is_mean_of_absolute_values(trials) -> bool:
    """For many features the mean of absolute values is 0.80 of the deviation, for one it is 0.64."""
    found = [(d, spread / math.sqrt(d)) for d, spread in _numbers(trials)]
    return len(found) > 2 and all((0.75 if d > 8 else 0.6) < ratio < 0.85 for d, ratio in found)


def _is_other_power(trials) -> bool:
    """The logarithms of the numbers lie on a line over those of d_k, through 1 at d_k = 1, of another slope."""
    slopes = [math.log(spread) / math.log(d) for d, spread in _numbers(trials) if d > 1 and spread > 0]
    return len(slopes) > 2 and max(slopes) - min(slopes) < 0.02 and abs(slopes[0] - 0.5) > 0.05


def _all_alike(trials) -> bool:
    numbers = [n for _, n in _numbers(trials)]
    return len(numbers) > 1 and max(numbers) == min(numbers)


score_std = Exercise(
    "score_std",
    signature="d_k",
    expects="one number: how wide the scores of random vectors with d_k features spread.",
    reference=_measured,
    parts=_one_number("spread"),
    read=read.GROWS,
    probes=[Probe(f"d_k = {d}", (d,), tolerance=0.05) for d in (64, 9, 512, 100, 1, 2)],
    mistakes=[
        Mistake(
            "std_is_variance",
            "That is the variance. The spread asked for is the standard deviation.",
            lambda d: float(d),
        ),
        Mistake(
            "std_after_the_division",
            "Your number is 1 for every d_k: so wide spreads one product, or a score after the division. "
            "Asked for is the spread of the plain scores.",
            lambda d: 1.0,
        ),
        Mistake("std_inverted", "That is one over the spread.", lambda d: d**-0.5, lambda d: 1 / d),
        Mistake("std_half", "Half the width is right for d_k = 4 alone.", lambda d: d / 2),
        Mistake("std_log", "The spread does not grow like a logarithm.", lambda d: math.log(d), lambda d: math.log2(d)),
        Mistake("std_fixed", "Your number does not depend on d_k, or hardly.", Sign(lambda trials: _all_alike(trials)), Sign(_hardly_grows)),
        Mistake(
            "std_of_one",
            "Your number is NaN: the spread of one score alone is none. Draw many pairs, and take the spread of their scores.",
            Sign(_is_nan),
        ),
        Mistake("std_is_mean", "Your number lies near 0: that is the mean of the scores. Asked for is how far they spread around it.", Sign(_is_near_zero)),
        Mistake(
            "std_whole_number",
            "Your root is cut off to a whole number: it is right for 4, 9 or 64 features, and not for all.",
            lambda d: float(math.isqrt(d)),
        ),
        Mistake(
            "std_of_absolute_values",
            "That is the mean of the absolute values. The spread asked for is the standard deviation, which is larger.",
            lambda d: math.sqrt(2 * d / math.pi),
            Sign(_is_mean_of_absolute_values),
        ),
        Mistake(
            "std_other_power",
            "Your spread grows like another power of d_k. It grows like its square root.",
            Sign(_is_other_power),
        ),
        Mistake(
            "std_counts_one_too_few",
            "You take one feature off: all d_k products are added up.",
            lambda d: math.sqrt(d - 1),
        ),
        Mistake(
            "std_of_sums",
            "Your number is too large by the root of 2: so wide spreads a sum of two vectors, or a vector multiplied with itself. "
            "A score multiplies two different ones.",
            lambda d: math.sqrt(2 * d),
        ),
        Mistake(
            "std_times_a_number",
            "Your number grows like the root of d_k, but with a factor in front. Have the entries that you draw mean 0 and spread 1?",
            Sign(_is_root_times_a_number),
        ),
        Mistake("std_few_draws", "Your numbers scatter around the right ones. Draw more pairs.", Sign(_scatters)),
    ],
)


def _right_divisor(d_k: int, spread_query: float, spread_key: float) -> float:
    return spread_query * spread_key * math.sqrt(d_k)


divisor = Exercise(
    "divisor",
    signature="d_k spread_query spread_key",
    expects="one number: what the scores must be divided by, so that they spread 1.",
    reference=_right_divisor,
    parts=_one_number("divisor"),
    read=read.GROWS,
    probes=[
        Probe(f"d_k = {d}, spreads {a} and {b}", (d, a, b), tolerance=0.05)
        for d, a, b in ((16, 2.0, 3.0), (64, 1.0, 1.0), (100, 0.5, 0.7), (9, 4.0, 0.25), (512, 0.58, 0.58), (25, 1.0, 6.0))
    ],
    mistakes=[
        Mistake(
            "divisor_ignores_spreads",
            "Your number depends on d_k alone. Queries that spread twice as wide make scores that spread twice as wide.",
            lambda d, a, b: math.sqrt(d),
        ),
        Mistake(
            "divisor_one_spread",
            "Only one of the two spreads counts in your number.",
            lambda d, a, b: a * math.sqrt(d),
            lambda d, a, b: b * math.sqrt(d),
            lambda d, a, b: a * a * math.sqrt(d),
            lambda d, a, b: b * b * math.sqrt(d),
            lambda d, a, b: max(a, b) * math.sqrt(d),
        ),
        Mistake(
            "divisor_is_variance",
            "That is the variance of the scores. Divided by it they spread far less than 1.",
            lambda d, a, b: a * a * b * b * d,
        ),
        Mistake(
            "divisor_without_root",
            "The spreads are right, but d_k stands in your number without its root.",
            lambda d, a, b: a * b * d,
        ),
        Mistake(
            "divisor_without_width",
            "That brings one product to spread 1. A score is a sum of d_k of them.",
            lambda d, a, b: a * b,
        ),
        Mistake(
            "divisor_root_of_spreads",
            "Your root goes over a spread as well. They are standard deviations already; variances are their squares.",
            lambda d, a, b: math.sqrt(a * b * d),
            lambda d, a, b: math.sqrt(a * d) * b,
            lambda d, a, b: a * math.sqrt(b * d),
            lambda d, a, b: math.sqrt(a * b) * d,
        ),
        Mistake(
            "divisor_adds_spreads",
            "You add the spreads, or take their mean. Query and key are multiplied, not added.",
            lambda d, a, b: (a + b) * math.sqrt(d),
            lambda d, a, b: (a + b) / 2 * math.sqrt(d),
            lambda d, a, b: math.sqrt(a * a + b * b) * math.sqrt(d),
            lambda d, a, b: math.sqrt((a * a + b * b) / 2) * math.sqrt(d),
            lambda d, a, b: math.sqrt(d + a * a + b * b),
            lambda d, a, b: math.sqrt(d) + a + b,
        ),
        Mistake(
            "divisor_spreads_squared",
            "The spreads stand squared in your number, and d_k under its root. The root goes over both.",
            lambda d, a, b: (a * b) ** 2 * math.sqrt(d),
        ),
        Mistake(
            "divisor_spread_as_mean",
            "You draw numbers around the spread: it has become their mean. Their mean is 0, and the spread is how far they reach around it.",
            lambda d, a, b: math.sqrt(d * (a * a + b * b + 1)),
        ),
        Mistake("divisor_is_mean", "Your number lies near 0: that is the mean of the scores, not how far they spread.", Sign(_is_near_zero)),
        Mistake(
            "divisor_inverted",
            "That is the number to multiply with. Asked for is the one to divide by.",
            lambda d, a, b: 1 / (a * b * math.sqrt(d)),
        ),
        Mistake(
            "divisor_spreads_divided",
            "You divide by a spread. Wider queries ask for a larger divisor, and wider keys too.",
            lambda d, a, b: math.sqrt(d) / (a * b),
            lambda d, a, b: math.sqrt(d) * a / b,
            lambda d, a, b: math.sqrt(d) * b / a,
        ),
        Mistake("divisor_fixed", "Your number is the same whatever is asked.", Sign(lambda trials: _all_alike(trials))),
    ],
)

_WATCHED = (normal(2, 4, 8, seed=46), normal(2, 5, 8, seed=47), normal(2, 5, 6, seed=48))


class _Undivided(TorchDispatchMode):
    """Watches what is computed: is there a tensor of undivided scores, whole, in rows or in columns?"""

    def __init__(self, query: Tensor, key: Tensor):
        super().__init__()
        table = query @ key.transpose(-2, -1)
        self.rows = [table.flatten(0, -2), table.transpose(-2, -1).flatten(0, -2)]
        self.found: tuple[int, ...] | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and any(self._holds(tensor, rows) for rows in self.rows):
                self.found = self.found or tuple(tensor.shape)
        return result

    @staticmethod
    def _holds(tensor: Tensor, rows: Tensor) -> bool:
        if tensor.dim() == 0 or tensor.size(-1) != rows.size(-1):
            return False
        gaps = (tensor.reshape(-1, 1, rows.size(-1)).double() - rows.double()).abs().amax(-1)
        return bool((gaps.amin(-1) < 1e-4).all())


def _undivided(specimen: Specimen):
    inputs = [x.clone() for x in _WATCHED]

    def run():
        with torch.no_grad(), watch:
            specimen.answer(*inputs)

    watch = _Undivided(*inputs[:2])
    specimen.guard.call(run)
    if watch.found is None:
        return None
    return {
        "seen on": ", ".join(f"{n} {tuple(x.shape)}" for n, x in zip(("query", "key", "value"), _WATCHED)),
        "yours": f"a tensor {watch.found} that holds undivided scores",
    }


def _scaled_way(query, key, value):
    way = attention_with.way(query, key, value)
    del way["the dot products"]
    return {"the divided queries": query / math.sqrt(query.size(-1))} | way


scaling = Exercise(
    "scaling",
    signature="query key value",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k).",
    reference=attention_with,
    parts=output_and_weights,
    read=read.SCALE,
    probes=ATTENTION_PROBES,
    way=_scaled_way,
    mistakes=[
        *SCALING,
        *ATTENTION,
        Mistake(
            "scaling_after_the_product",
            "The result is right, but you divide the scores once they are there. Asked for is a way on which no undivided score "
            "ever exists: divide what goes into the product.",
            Law(_undivided),
        ),
    ],
)

_LARGE_ROWS = torch.tensor([[[100.0, 0.0, -5.0, 99.0], [-300.0, -301.0, -302.0, -303.0], [1.0, 2.0, 3.0, 4.0]]])
_THOUSANDS = torch.tensor([[[9000.0, 2.0, 8999.0], [3.0, 7000.0, 1.0], [-5.0, 2.0, -8000.0], [5000.0, -1.0, 0.0]]])


def _hand(scores, shift, dim=-1):
    exp = (scores - shift).exp()
    return exp / exp.sum(dim=dim, keepdim=True)


stable_softmax = Exercise(
    "stable_softmax",
    signature="scores",
    expects="one tensor of the shape of the scores, in which every row sums to 1, however large the scores.",
    reference=lambda scores: scores.softmax(-1),
    way=lambda scores: {"the weights": scores.softmax(-1)},
    parts=one_tensor("weights"),
    read=read.STABLE,
    probes=[
        Probe("ordinary scores", (normal(2, 3, 5, seed=41),)),
        Probe("large scores and rows far apart", (_LARGE_ROWS,)),
        Probe("very low scores", (normal(2, 3, 5, seed=42) - 500.0,)),
        Probe("scores of thousands, the first one largest", (_THOUSANDS,), tolerance=1e-3),
        Probe("a head axis in front", (normal(2, 3, 4, 6, seed=43, scale=60.0),)),
        Probe("a square table", (normal(4, 4, seed=44, scale=60.0),)),
        Probe("gradients", (normal(2, 3, 5, seed=45),), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "softmax_overflows",
            "Nothing is taken off the scores before the exponential, or not enough: large ones become infinite, "
            "and infinity over infinity is NaN.",
            lambda s: _hand(s, 0.0),
            lambda s: _hand(s, s.mean(-1, keepdim=True)),
            lambda s: _hand(s, s.amin(-1, keepdim=True)),
            lambda s: (s - s.exp().sum(-1, keepdim=True).log()).exp(),
            lambda s: _hand(s, s.median(-1, keepdim=True).values),
        ),
        Mistake(
            "softmax_more_than_max",
            "What you take off can be larger than the row's own maximum: in a row far below it every exponential is 0, and 0/0 is NaN.",
            lambda s: _hand(s, s.abs().amax(-1, keepdim=True)),
            lambda s: _hand(s, s.amax(-1, keepdim=True).clamp_min(0.0)),
        ),
        Mistake(
            "softmax_overflows_later",
            "In 64-bit floats large scores fit longer, but nothing is taken off: in the thousands they overflow as well.",
            lambda s: _hand(s.double(), 0.0).float(),
        ),
        Mistake(
            "softmax_max_of_a_part",
            "The maximum you take off leaves entries out. Where the largest score stands there, it overflows.",
            lambda s: _hand(s, s[..., 1:].amax(-1, keepdim=True)),
            lambda s: _hand(s, s[..., :-1].amax(-1, keepdim=True)),
        ),
        Mistake(
            "softmax_global_max",
            "You take off the maximum of the whole tensor. In a row far below it every exponential is 0, and 0/0 is NaN.",
            lambda s: _hand(s, s.max()),
            lambda s: _hand(s, s.amax((-2, -1), keepdim=True)),
        ),
        Mistake(
            "softmax_global_max_epsilon",
            "You take off the maximum of the whole tensor. In a row far below it every exponential is 0, and all weights of the row "
            "are 0 with it: a small number in the denominator hides only the NaN.",
            *(
                lambda s, low=low: (e := (s - s.max()).exp()) / (e.sum(-1, keepdim=True) + low)
                for low in (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-5)
            ),
            lambda s: (e := (s - s.max()).exp()) / e.sum(-1, keepdim=True).clamp_min(1e-12),
            lambda s: (e := (s - s.amax((-2, -1), keepdim=True)).exp()) / e.sum(-1, keepdim=True).clamp_min(1e-12),
        ),
        Mistake(
            "softmax_column_max",
            "The maximum you take off is that of another axis, so the entries of one row lose different amounts. "
            "The softmax runs along the row, and each row needs its own.",
            lambda s: _hand(s, s.amax(-2, keepdim=True)),
            lambda s: _hand(s, s.amax(0)),
            lambda s: _hand(s, s.amax(1, keepdim=True)),
        ),
        Mistake(
            "softmax_max_after_exp",
            "You take the maximum off behind the exponential. There it is too late: large scores have become infinite, and what is "
            "left is no exponential any more.",
            lambda s: (e := s.exp() - s.exp().amax(-1, keepdim=True)) / e.sum(-1, keepdim=True),
            lambda s: (e := s.exp()) / e.amax(-1, keepdim=True),
        ),
        Mistake(
            "softmax_adds_max",
            "You add the maximum where it must be taken off: large scores become larger still.",
            lambda s: _hand(s, -s.amax(-1, keepdim=True)),
        ),
        Mistake(
            "softmax_standardised",
            "You also divide by the spread of the row. That changes the weights; taking a number off does not.",
            lambda s: _hand((s - s.mean(-1, keepdim=True)) / s.std(-1, keepdim=True), 0.0),
            lambda s: _hand((s - s.amax(-1, keepdim=True)) / s.std(-1, keepdim=True), 0.0),
        ),
        Mistake(
            "softmax_whole_tensor",
            "Your numbers sum to 1 all together, or all those of a table. Every row must sum to 1 by itself.",
            lambda s: (e := (s - s.max()).exp()) / e.sum(),
            lambda s: torch.stack([(e := (entry - entry.max()).exp()) / e.sum() for entry in s]),
        ),
        Mistake(
            "softmax_max_without_keepdim",
            "The maxima have lost their axis: they line up with the columns instead of the rows.",
            lambda s: _hand(s, s.amax(-1)),
        ),
        Mistake(
            "softmax_clamped",
            "You cut the scores off at a limit. All scores beyond it become equal, so the weights are wrong.",
            *(lambda s, c=c: _hand(s.clamp(max=c), 0.0) for c in (10.0, 50.0, 80.0, 88.0)),
            *(lambda s, c=c: _hand(s.clamp(-c, c), 0.0) for c in (10.0, 50.0, 80.0, 88.0)),
        ),
        Mistake(
            "softmax_divided_by_max",
            "You divide by the maximum. That changes the weights; taking it off does not.",
            lambda s: (s / s.amax(-1, keepdim=True)).softmax(-1),
            lambda s: (s / s.abs().amax(-1, keepdim=True)).softmax(-1),
            lambda s: F.normalize(s, dim=-1).softmax(-1),
        ),
        Mistake(
            "softmax_over_queries",
            "Your columns sum to 1, not your rows.",
            lambda s: s.softmax(-2),
            lambda s: _hand(s, s.amax(-1, keepdim=True), dim=-2),
        ),
        Mistake(
            "softmax_axis_counted_from_front",
            "Your axis is counted from the front: with another axis in front it is no longer that of the keys.",
            lambda s: s.softmax(1),
            lambda s: s.softmax(2),
            lambda s: s.softmax(0),
        ),
        Mistake(
            "softmax_not_normalised",
            "You stop after the exponential: no row sums to 1.",
            lambda s: (s - s.amax(-1, keepdim=True)).exp(),
            lambda s: s.exp(),
        ),
        Mistake(
            "softmax_sum_without_keepdim",
            "The sums have lost their axis: column j is divided by the sum of row j.",
            lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / e.sum(-1),
        ),
        Mistake(
            "softmax_nan_papered_over",
            "You replace NaN afterwards. The row it stood in has lost its weights.",
            lambda s: _hand(s, 0.0).nan_to_num(0.0),
            lambda s: _hand(s, 0.0).nan_to_num(1.0),
            lambda s: _hand(s, s.max()).nan_to_num(0.0),
        ),
        Mistake(
            "softmax_epsilon",
            "Something is added to the denominator: the rows sum to less than 1.",
            lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / (1 + e.sum(-1, keepdim=True)),
        ),
        Mistake(
            "softmax_changes_scores",
            "Your code writes into the caller's scores.",
            Sign(lambda trials: any("scores" in t.seen.changed for t in trials)),
        ),
    ],
)


def _plain(function):
    return lambda *args: function(*args)[0]


bug_scaling = BugHunt(
    "bug_scaling",
    signature="query key value",
    expects="the arguments (query, key, value) of a call on which the function gives a wrong output.",
    reference=_plain(reference_attention),
    buggy=planted.attention_scaled,
    read=read.SCALE,
    lucky=(
        Lucky(
            "hidden_by_equal_sizes",
            "Here there are as many keys as features. Two sizes that happen to be equal hide every mix-up of the two.",
            lambda query, key, value: key.size(-2) == key.size(-1),
        ),
        Lucky(
            "hidden_by_one_key",
            "With a single key its weight is 1, whatever the score.",
            lambda query, key, value: key.size(-2) == 1,
        ),
        Lucky(
            "hidden_by_equal_scores",
            "Here all keys get nearly the same score, and a softmax of equal numbers is flat at any scale.",
            lambda query, key, value: (
                float((s := query @ key.transpose(-2, -1)).max(-1).values.sub(s.min(-1).values).max()) < 1e-3
            ),
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
        Lucky(
            "hidden_by_saturation",
            "The scores are so large that one key takes everything, at either scale.",
            lambda query, key, value: float((query @ key.transpose(-2, -1)).abs().max()) > 50,
        ),
    ),
)
