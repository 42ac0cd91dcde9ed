"""The known mistakes in how widely scores spread, and in what divides them."""

import math

from mha_lib.checks.case import Mistake, Sign


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
    return (
        len(ratios) > 2
        and all(0.4 < r < 1.7 for r in ratios)
        and any(r < 1 for r in ratios)
        and any(r > 1 for r in ratios)
    )


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


SCORE_STD = (
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
    Mistake(
        "std_fixed",
        "Your number does not depend on d_k, or hardly.",
        Sign(lambda trials: _all_alike(trials)),
        Sign(_hardly_grows),
    ),
    Mistake(
        "std_of_one",
        "Your number is NaN: the spread of one score alone is none. Draw many pairs, and take the spread of their "
        "scores.",
        Sign(_is_nan),
    ),
    Mistake(
        "std_is_mean",
        "Your number lies near 0: that is the mean of the scores. Asked for is how far they spread around it.",
        Sign(_is_near_zero),
    ),
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
        "Your number is too large by the root of 2: so wide spreads a sum of two vectors, or a vector multiplied with "
        "itself. "
        "A score multiplies two different ones.",
        lambda d: math.sqrt(2 * d),
    ),
    Mistake(
        "std_times_a_number",
        "Your number grows like the root of d_k, but with a factor in front. Have the entries that you draw mean 0 "
        "and spread 1?",
        Sign(_is_root_times_a_number),
    ),
    Mistake("std_few_draws", "Your numbers scatter around the right ones. Draw more pairs.", Sign(_scatters)),
)

DIVISOR = (
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
        lambda d, a, b: min(a, b) * math.sqrt(d),
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
        "You draw numbers around the spread: it has become their mean. Their mean is 0, and the spread is how far "
        "they reach around it.",
        lambda d, a, b: math.sqrt(d * (a * a + b * b + 1)),
    ),
    Mistake(
        "divisor_is_mean",
        "Your number lies near 0: that is the mean of the scores, not how far they spread.",
        Sign(_is_near_zero),
    ),
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
)
