"""The known mistakes in counting the bytes of a cache."""

import itertools
import math

from mha_lib.checks.case import Mistake, Sign


def bytes_of(batch, length, num_heads, d_k, num_layers, bytes_per_number):
    return 2 * num_layers * batch * length * num_heads * d_k * bytes_per_number


def _is_a_sum(trials):
    """Say whether some of the factors are added where all should be multiplied: outer · (some + the others)."""
    told = [((2, *t.probe.args), float(t.seen.parts.get("number of bytes", math.nan))) for t in trials]
    for sides in itertools.product(range(3), repeat=7):
        if 1 in sides and all(_outer_times_sum(factors, sides) == number for factors, number in told):
            return True
    return False


def _outer_times_sum(factors, sides):
    outer, one, other = (math.prod(f for f, s in zip(factors, sides) if s == side) for side in range(3))
    return outer * (one + other)


BYTES = (
    Mistake(
        "bytes_one_of_two",
        "You count keys or values. Both are kept.",
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, n) / 2,
    ),
    Mistake(
        "bytes_one_layer",
        "You count one layer. Every layer keeps its own.",
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, 1, n),
    ),
    Mistake(
        "bytes_one_text",
        "You count one text of the batch.",
        lambda b, t, h, d, layers, n: bytes_of(1, t, h, d, layers, n),
    ),
    Mistake(
        "bytes_one_token",
        "You count one token. All tokens so far are kept.",
        lambda b, t, h, d, layers, n: bytes_of(b, 1, h, d, layers, n),
    ),
    Mistake("bytes_one_head", "You count one head.", lambda b, t, h, d, layers, n: bytes_of(b, t, 1, d, layers, n)),
    Mistake(
        "bytes_heads_not_wide",
        "The width of a head is missing: a key is d_k numbers.",
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, 1, layers, n),
    ),
    Mistake(
        "bytes_numbers",
        "You count numbers, or take another size for each. The bytes of a number are given.",
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, 1),
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, 4),
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, 2),
    ),
    Mistake(
        "bytes_bits",
        "You count bits. A byte is eight of them.",
        lambda b, t, h, d, layers, n: 8 * bytes_of(b, t, h, d, layers, n),
    ),
    Mistake(
        "bytes_other_unit",
        "Your number is in kibi-, mebi- or gibibytes, or in their decimal kin. Asked for are bytes.",
        *(
            lambda b, t, h, d, layers, n, u=u: bytes_of(b, t, h, d, layers, n) / u
            for u in (1024, 1024**2, 1024**3, 1e3, 1e6, 1e9)
        ),
    ),
    Mistake(
        "bytes_table",
        "You count the table of weights, which grows with the square of the length. A cache keeps keys and values "
        "alone.",
        lambda b, t, h, d, layers, n: layers * b * h * t * t * n,
        lambda b, t, h, d, layers, n: 2 * layers * b * h * t * t * n,
        lambda b, t, h, d, layers, n: 2 * layers * b * h * t * t * d * n,
    ),
    Mistake(
        "bytes_queries_too",
        "You count queries as well. A query is needed once, and not kept.",
        lambda b, t, h, d, layers, n: 3 * bytes_of(b, t, h, d, layers, n) // 2,
    ),
    Mistake(
        "bytes_added",
        "Something is added where it should be multiplied.",
        lambda b, t, h, d, layers, n: 2 * (layers + b * t * h * d * n),
        lambda b, t, h, d, layers, n: 2 + layers * b * t * h * d * n,
        lambda b, t, h, d, layers, n: (2 + layers * b * t * h * d) * n,
        lambda b, t, h, d, layers, n: 2 * layers * b * t * (h + d) * n,
        lambda b, t, h, d, layers, n: 2 * layers * (b + t) * h * d * n,
        Sign(lambda trials: _is_a_sum(trials)),
    ),
    Mistake(
        "bytes_heads_twice",
        "A factor stands twice: heads squared, or the width of all heads where that of one belongs.",
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, n) * h,
        lambda b, t, h, d, layers, n: bytes_of(b, t, h, d, layers, n) * d,
    ),
    Mistake(
        "bytes_two_twice",
        "Your number is twice as large: keys and values are two, and you count them as four.",
        lambda b, t, h, d, layers, n: 2 * bytes_of(b, t, h, d, layers, n),
    ),
    Mistake(
        "bytes_length_off",
        "You count one token too few or too many. A text of `length` tokens keeps that many keys.",
        lambda b, t, h, d, layers, n: bytes_of(b, t - 1, h, d, layers, n),
        lambda b, t, h, d, layers, n: bytes_of(b, t + 1, h, d, layers, n),
    ),
    Mistake(
        "bytes_of_every_step",
        "You add up what the cache weighs after each token. What is kept is kept once.",
        lambda b, t, h, d, layers, n: bytes_of(b, t * (t - 1) // 2, h, d, layers, n),
        lambda b, t, h, d, layers, n: bytes_of(b, t * (t + 1) // 2, h, d, layers, n),
    ),
    Mistake(
        "bytes_power",
        "A power stands where two numbers should be multiplied.",
        lambda b, t, h, d, layers, n: 2 * b * t * h * d * layers**n,
        lambda b, t, h, d, layers, n: bytes_of(b, t, 1, h**d, layers, n),
        lambda b, t, h, d, layers, n: (layers * b * t * h * d) ** 2 * n,
        lambda b, t, h, d, layers, n: layers * (b * t * h * d) ** 2 * n,
    ),
)
