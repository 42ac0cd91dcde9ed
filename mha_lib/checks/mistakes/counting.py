"""The known mistakes in counting multiplications and bytes."""

import math

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign


def _count(linears=4.0, tables=2.0):
    """Return a count of linears times B T d^2 and tables times B T^2 d."""
    return lambda B, T, d: linears * B * T * d**2 + tables * B * T**2 * d


def _numbers_of(trials) -> tuple[float, float] | None:
    """Return how many linears and how many products between tokens a count holds, if it is made of those alone."""
    counts = [(t.probe.args, float(n)) for t in trials for n in t.seen.parts.values()]
    if len(counts) < 3:
        return None
    rows = [(B * T * d**2, B * T**2 * d, n) for (B, T, d), n in counts]
    (a, b, x), (c, e, y) = rows[:2]
    linears, tables = (x * e - b * y) / (a * e - b * c), (a * y - c * x) / (a * e - b * c)
    fits = all(abs(p * linears + q * tables - n) < 1e-6 * max(abs(n), 1) for p, q, n in rows)
    return (linears, tables) if fits else None


def _are_other_numbers(linears: bool, tables: bool):
    """Return the test whether the numbers of linears and of tables are wrong, as said of each."""

    def test(trials) -> bool:
        found = _numbers_of(trials)
        return found is not None and ((abs(found[0] - 4) > 1e-6) == linears) and ((abs(found[1] - 2) > 1e-6) == tables)

    return test


MULTIPLICATIONS = (
    Mistake("count_additions_too", "You count the additions as well: twice as much.", _count(8, 4)),
    Mistake("count_tables_only", "The linears are missing: you count scores and mixture alone.", _count(linears=0)),
    Mistake("count_linears_only", "Scores and mixture are missing: you count the linears alone.", _count(tables=0)),
    Mistake(
        "count_linears_wrong",
        "The number of linears is not the layer's.",
        *(_count(linears=n) for n in (1, 2, 3, 5, 6)),
        Sign(_are_other_numbers(linears=True, tables=False)),
        read=read.LAYER,
    ),
    Mistake(
        "count_one_table",
        "Two products have a side for each token twice. You count one of them, or more.",
        _count(tables=1),
        _count(tables=3),
        Sign(_are_other_numbers(linears=False, tables=True)),
    ),
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
        "You count the cells of the tables. Each cell of the scores is a sum over all features, and each weight "
        "multiplies a whole value.",
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
        "You count the biases, the division or the softmax as well: they are no part of the products.",
        lambda B, T, d: _count()(B, T, d) + 4 * B * T * d,
        *(lambda B, T, d, n=n: _count()(B, T, d) + n * B * T**2 for n in (1, 2, 3, 4)),
        *(lambda B, T, d, n=n: _count()(B, T, d) + n * B * T**2 + 4 * B * T * d for n in (1, 2, 3)),
        lambda B, T, d: _count()(B, T, d) + 4 * d,
    ),
    Mistake(
        "count_across_sentences",
        "In your count tokens meet those of other sentences: the number of sentences is squared.",
        lambda B, T, d: 4 * B * T * d**2 + 2 * (B * T) ** 2 * d,
    ),
    Mistake(
        "count_both_numbers",
        "Both kinds of products are in your count, but neither as often as in the layer: not the linears, and not the "
        "products between tokens.",
        Sign(_are_other_numbers(linears=True, tables=True)),
        read=read.LAYER,
    ),
    Mistake(
        "count_half_a_table",
        "You count half of the tables, as if the future were blocked. All their cells are computed.",
        lambda B, T, d: 4 * B * T * d**2 + B * T * (T + 1) * d,
        lambda B, T, d: 4 * B * T * d**2 + B * T * (T - 1) * d,
    ),
    Mistake(
        "count_linears_once",
        "You count a linear once. It works on every token anew.",
        lambda B, T, d: 4 * d**2 + 2 * B * T**2 * d,
        lambda B, T, d: 4 * B * d**2 + 2 * B * T**2 * d,
    ),
    Mistake(
        "count_features_squared",
        "In your products between tokens the number of features is squared. Each cell is one sum over the features.",
        lambda B, T, d: 4 * B * T * d**2 + 2 * B * T**2 * d**2,
    ),
    Mistake(
        "count_doubled_for_squared",
        "Where a square belongs, you multiply by 2. Two stars raise to a power, one multiplies.",
        lambda B, T, d: 4 * B * T * d * 2 + 2 * B * T * 2 * d,
        lambda B, T, d: 4 * B * T * d**2 + 2 * B * T * 2 * d,
        lambda B, T, d: 4 * B * T * d * 2 + 2 * B * T**2 * d,
    ),
    Mistake(
        "count_multiplied",
        "You multiply the parts of the count with each other. They add up.",
        lambda B, T, d: 4 * B * T * d**2 * 2 * B * T**2 * d,
    ),
    Mistake("count_fixed", "Your number is the same for every input.", Sign(lambda trials: _all_alike(trials))),
)


def _all_alike(trials) -> bool:
    numbers = [float(part) for t in trials for part in t.seen.parts.values()]
    return len(numbers) > 1 and max(numbers) == min(numbers)


def longest(budget, heads, bytes_per_number=4, tables=1):
    return math.isqrt(budget // (heads * bytes_per_number * tables))


LONGEST_TEXT = (
    Mistake(
        "text_two_tables",
        "You make room for more than one table. Asked for is the table of weights alone.",
        lambda b, h: longest(b, h, tables=2),
    ),
    Mistake(
        "text_heads_forgotten", "Each head has a table of its own. You count one for all.", lambda b, h: longest(b, 1)
    ),
    Mistake(
        "text_bytes_forgotten",
        "You count one byte for each number. A 32-bit float takes more.",
        lambda b, h: longest(b, h, 1),
    ),
    Mistake(
        "text_bits_for_bytes",
        "You count the bits of a number as if they were bytes.",
        lambda b, h: longest(b, h, 32),
        lambda b, h: math.isqrt(b * 8 // (h * 4)),
    ),
    Mistake(
        "text_other_float",
        "In your count a cell takes half as much memory as a 32-bit float, or twice as much.",
        lambda b, h: longest(b, h, 2),
        lambda b, h: longest(b, h, 8),
    ),
    Mistake(
        "text_root_forgotten",
        "That many cells fit. A text has the square of its length in cells.",
        lambda b, h: b // (4 * h),
        lambda b, h: b / (4 * h),
    ),
    Mistake("text_half_for_root", "You halve where the root is asked for.", lambda b, h: b // (4 * h) // 2),
    Mistake(
        "text_rounded_up",
        "Your number is rounded up, or to the nearest: that text no longer fits.",
        lambda b, h: math.ceil(math.sqrt(b / (4 * h))),
        lambda b, h: round(math.sqrt(b / (4 * h))),
    ),
    Mistake(
        "text_not_whole", "Your number is not whole. A text has no half tokens.", lambda b, h: math.sqrt(b / (4 * h))
    ),
    Mistake(
        "text_one_too_short",
        "One token more would still fit where the budget comes out even.",
        lambda b, h: max(math.isqrt(max(b - 1, 0) // (4 * h)), 0),
    ),
    Mistake(
        "text_one_off",
        "Your number is one off: the text is one token too long or too short.",
        lambda b, h: longest(b, h) + 1,
        lambda b, h: longest(b, h) - 1,
    ),
    Mistake(
        "text_heads_outside_root",
        "The heads share the budget before the root is taken, not after.",
        lambda b, h: math.isqrt(b // 4) // h,
        lambda b, h: math.isqrt(b // 4) * h,
    ),
    Mistake(
        "text_root_of_bytes",
        "You take the root of the budget before it is divided by the size of a number.",
        lambda b, h: math.isqrt(b // h) // 4,
        lambda b, h: math.isqrt(b) // (4 * h),
    ),
    Mistake(
        "text_times_heads",
        "Your budget is multiplied by the number of heads: behind a division without brackets the next factor "
        "multiplies.",
        lambda b, h: math.isqrt(b // 4 * h),
        lambda b, h: math.isqrt(b * h // 4),
    ),
    Mistake(
        "text_two_roots",
        "You take a root of the heads by itself, and round it. One root of what is left for a table is enough.",
        lambda b, h: math.isqrt(b // 4) // math.isqrt(h),
        lambda b, h: math.isqrt(b // 4) // max(round(math.sqrt(h)), 1),
    ),
    Mistake(
        "text_other_unit",
        "You turn the budget into another unit first. It is in bytes already.",
        *(lambda b, h, u=u: math.isqrt(int(b * u) // (4 * h)) for u in (1024, 1 / 1024, 1024**2, 1 / 1024**2)),
    ),
    Mistake(
        "text_logarithm",
        "You take a logarithm where the root is asked for.",
        lambda b, h: int(math.log2(b / (4 * h))) if b >= 4 * h else 0,
    ),
    Mistake("text_fixed", "Your number is the same for every budget.", Sign(_all_alike)),
)
