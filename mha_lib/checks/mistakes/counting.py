"""The known mistakes in counting multiplications and bytes."""

import math

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign


def _count(linears=4.0, tables=2.0):
    """Return a count of linears times B T d^2 and tables times B T^2 d."""
    return lambda B, T, d: linears * B * T * d**2 + tables * B * T**2 * d


MULTIPLICATIONS = (
    Mistake("count_additions_too", "You count the additions as well: twice as much.", _count(8, 4)),
    Mistake("count_tables_only", "The linears are missing: you count scores and mixture alone.", _count(linears=0)),
    Mistake("count_linears_only", "Scores and mixture are missing: you count the linears alone.", _count(tables=0)),
    Mistake(
        "count_linears_wrong",
        "The number of linears is not the layer's.",
        *(_count(linears=n) for n in (1, 2, 3, 5, 6)),
        read=read.LAYER,
    ),
    Mistake("count_one_table", "Two products have a side for each token twice. You count one of them, or more.", _count(tables=1), _count(tables=3)),
    Mistake(
        "count_batch_forgotten",
        "The number of sentences plays no part in your count, or not in all of it.",
        lambda B, T, d: _count()(1, T, d),
        lambda B, T, d: 4 * B * T * d**2 + 2 * T**2 * d,
        lambda B, T, d: 4 * T * d**2 + 2 * B * T**2 * d,
    ),
    Mistake(
        "count_table_linear",
        "Your scores and mixture grow with the number of tokens. They have a row and a column for each.",
        lambda B, T, d: 4 * B * T * d**2 + 2 * B * T * d,
    ),
    Mistake(
        "count_cells_only",
        "You count the cells of the tables. Each cell of the scores is a sum over all features, and each weight multiplies a whole value.",
        lambda B, T, d: 4 * B * T * d**2 + 2 * B * T**2,
        lambda B, T, d: 4 * B * T * d**2 + B * T**2,
    ),
    Mistake("count_all_as_linears", "You count scores and mixture as if they were linears.", _count(6, 0)),
    Mistake("count_all_as_tables", "You count the linears as if they made tables of tokens by tokens.", _count(0, 6)),
    Mistake(
        "count_one_output",
        "A linear sums over all features for each of its outputs. You count one output of each.",
        lambda B, T, d: 4 * B * T * d + 2 * B * T**2 * d,
    ),
    Mistake(
        "count_biases_too",
        "You count the biases, or the division: they are no part of the products.",
        lambda B, T, d: _count()(B, T, d) + 4 * B * T * d,
        lambda B, T, d: _count()(B, T, d) + B * T**2,
        lambda B, T, d: _count()(B, T, d) + 4 * d,
    ),
    Mistake(
        "count_across_sentences",
        "In your count tokens meet those of other sentences: the number of sentences is squared.",
        lambda B, T, d: 4 * B * T * d**2 + 2 * (B * T) ** 2 * d,
    ),
    Mistake("count_fixed", "Your number is the same for every input.", Sign(lambda trials: _all_alike(trials))),
)


def _all_alike(trials) -> bool:
    numbers = [float(part) for t in trials for part in t.seen.parts.values()]
    return len(numbers) > 1 and max(numbers) == min(numbers)


def longest(budget, heads, bytes_per_number=4, tables=1):
    return math.isqrt(budget // (heads * bytes_per_number * tables))


LONGEST_TEXT = (
    Mistake("text_two_tables", "You make room for more than one table. Asked for is the table of weights alone.", lambda b, h: longest(b, h, tables=2)),
    Mistake("text_heads_forgotten", "Each head has a table of its own. You count one for all.", lambda b, h: longest(b, 1)),
    Mistake("text_bytes_forgotten", "You count one byte for each number. A 32-bit float takes more.", lambda b, h: longest(b, h, 1)),
    Mistake("text_bits_for_bytes", "You count the bits of a number as if they were bytes.", lambda b, h: longest(b, h, 32), lambda b, h: math.isqrt(b * 8 // (h * 4))),
    Mistake("text_other_float", "Your numbers have another size than 32-bit floats.", lambda b, h: longest(b, h, 2), lambda b, h: longest(b, h, 8)),
    Mistake("text_root_forgotten", "That many cells fit. A text has the square of its length in cells.", lambda b, h: b // (4 * h), lambda b, h: b / (4 * h)),
    Mistake("text_half_for_root", "You halve where the root is asked for.", lambda b, h: b // (4 * h) // 2),
    Mistake("text_rounded_up", "Your number is rounded up, or to the nearest: that text no longer fits.", lambda b, h: math.ceil(math.sqrt(b / (4 * h))), lambda b, h: round(math.sqrt(b / (4 * h)))),
    Mistake("text_not_whole", "Your number is not whole. A text has no half tokens.", lambda b, h: math.sqrt(b / (4 * h))),
    Mistake("text_one_too_short", "One token more would still fit where the budget comes out even.", lambda b, h: max(math.isqrt(max(b - 1, 0) // (4 * h)), 0)),
    Mistake("text_one_off", "Your number is one off: the text is one token too long or too short.", lambda b, h: longest(b, h) + 1, lambda b, h: longest(b, h) - 1),
    Mistake("text_heads_outside_root", "The heads share the budget before the root is taken, not after.", lambda b, h: math.isqrt(b // 4) // h, lambda b, h: math.isqrt(b // 4) * h),
    Mistake("text_root_of_bytes", "You take the root of the budget before it is divided by the size of a number.", lambda b, h: math.isqrt(b // h) // 4, lambda b, h: math.isqrt(b) // (4 * h)),
    Mistake("text_fixed", "Your number is the same for every budget.", Sign(_all_alike)),
)
