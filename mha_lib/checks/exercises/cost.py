"""The checks of chapter 7: counting multiplications and bytes, a table in pieces, and a dropout that does not stop."""

import math
import weakref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib import cost
from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Law, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, a, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise, Specimen
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.experiments.training import seeded

EXACT = 1e-9


def _one_count(name: str):
    """Return a reader for results that are one number."""

    def read_it(value: object) -> dict[str, Tensor]:
        refuse_none(value)
        if isinstance(value, dict):
            raise Unfit("not_added_up", f"You returned a dict of {len(value)} numbers; asked for is one number.")
        if isinstance(value, (tuple, list)):
            raise Unfit("not_added_up", f"You returned {a(value)} of {len(value)}; asked for is one number.")
        if isinstance(value, bool):
            raise Unfit("wrong_type", "You returned True or False; asked for is one number.")
        try:
            return {name: torch.tensor(float(value), dtype=torch.float64)}
        except (TypeError, ValueError, RuntimeError):
            raise Unfit("wrong_type", f"You returned {a(value)}; asked for is one number.") from None

    return read_it


def _count(linears=4.0, tables=2.0):
    """Return a count of linears times B T d^2 and tables times B T^2 d."""
    return lambda B, T, d: linears * B * T * d**2 + tables * B * T**2 * d


multiplications = Exercise(
    "multiplications",
    signature="batch length d_model",
    expects="one number: all multiplications of the layer's products in one forward pass of self-attention.",
    reference=lambda B, T, d: sum(cost.multiplications(B, T, d).values()),
    parts=_one_count("count"),
    read=read.COUNT,
    show=lambda n: f"{n:,.0f}",
    probes=[
        Probe(f"{B} x {T} tokens of {d} features", (B, T, d), tolerance=EXACT)
        for B, T, d in ((3, 5, 8), (2, 32, 64), (1, 1024, 512), (4, 100, 7), (7, 1, 12))
    ],
    mistakes=[
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
    ],
)


def _all_alike(trials) -> bool:
    numbers = [float(part) for t in trials for part in t.seen.parts.values()]
    return len(numbers) > 1 and max(numbers) == min(numbers)


def _longest(budget, heads, bytes_per_number=4, tables=1):
    return math.isqrt(budget // (heads * bytes_per_number * tables))


longest_text = Exercise(
    "longest_text",
    signature="budget_bytes num_heads",
    expects="a whole number: the length of the longest text whose table of weights, in all heads, fits into the budget.",
    reference=_longest,
    parts=_one_count("length"),
    read=read.TABLE,
    show=lambda n: f"{n:,.10g}",
    probes=[
        Probe("1 MiB for 8 heads", (2**20, 8), tolerance=EXACT),
        Probe("a budget that fits exactly", (4 * 8 * 100**2, 8), tolerance=EXACT),
        Probe("one byte less", (4 * 8 * 100**2 - 1, 8), tolerance=EXACT),
        Probe("24 GiB for 12 heads", (24 * 2**30, 12), tolerance=EXACT),
        Probe("one head", (1_000_000, 1), tolerance=EXACT),
        Probe("not even one token", (7, 2), tolerance=EXACT),
    ],
    mistakes=[
        Mistake("text_two_tables", "You make room for more than one table. Asked for is the table of weights alone.", lambda b, h: _longest(b, h, tables=2)),
        Mistake("text_heads_forgotten", "Each head has a table of its own. You count one for all.", lambda b, h: _longest(b, 1)),
        Mistake("text_bytes_forgotten", "You count one byte for each number. A 32-bit float takes more.", lambda b, h: _longest(b, h, 1)),
        Mistake("text_bits_for_bytes", "You count the bits of a number as if they were bytes.", lambda b, h: _longest(b, h, 32), lambda b, h: math.isqrt(b * 8 // (h * 4))),
        Mistake("text_other_float", "Your numbers have another size than 32-bit floats.", lambda b, h: _longest(b, h, 2), lambda b, h: _longest(b, h, 8)),
        Mistake("text_root_forgotten", "That many cells fit. A text has the square of its length in cells.", lambda b, h: b // (4 * h), lambda b, h: b / (4 * h)),
        Mistake("text_half_for_root", "You halve where the root is asked for.", lambda b, h: b // (4 * h) // 2),
        Mistake("text_rounded_up", "Your number is rounded up, or to the nearest: that text no longer fits.", lambda b, h: math.ceil(math.sqrt(b / (4 * h))), lambda b, h: round(math.sqrt(b / (4 * h)))),
        Mistake("text_not_whole", "Your number is not whole. A text has no half tokens.", lambda b, h: math.sqrt(b / (4 * h))),
        Mistake("text_one_too_short", "One token more would still fit where the budget comes out even.", lambda b, h: max(math.isqrt(max(b - 1, 0) // (4 * h)), 0)),
        Mistake("text_one_off", "Your number is one off: the text is one token too long or too short.", lambda b, h: _longest(b, h) + 1, lambda b, h: _longest(b, h) - 1),
        Mistake("text_heads_outside_root", "The heads share the budget before the root is taken, not after.", lambda b, h: math.isqrt(b // 4) // h, lambda b, h: math.isqrt(b // 4) * h),
        Mistake("text_root_of_bytes", "You take the root of the budget before it is divided by the size of a number.", lambda b, h: math.isqrt(b // h) // 4, lambda b, h: math.isqrt(b) // (4 * h)),
        Mistake("text_fixed", "Your number is the same for every budget.", Sign(_all_alike)),
    ],
)

_QUERY, _KEY, _VALUE = normal(2, 7, 8, seed=701), normal(2, 5, 8, seed=702), normal(2, 5, 6, seed=703)
_HEADS = (normal(2, 3, 7, 8, seed=704), normal(2, 3, 5, 8, seed=705), normal(2, 3, 5, 6, seed=706))

# One sentence whose tables are told from all else by the number of keys: 40 queries, 11 keys, 4 rows at once.
_LONG = (normal(1, 1, 40, 2, seed=707), normal(1, 1, 11, 2, seed=708), normal(1, 1, 11, 2, seed=709))
_CHUNK, _QUERIES, _KEYS = 4, 40, 11


class _Tables(TorchDispatchMode):
    """Watches what is computed: the most rows of a table in one tensor, and in all tensors that are alive together."""

    def __init__(self, inputs: tuple[Tensor, ...]):
        super().__init__()
        self.given = {x.untyped_storage().data_ptr() for x in inputs}
        self.alive: list[tuple[weakref.ref, int]] = []
        self.largest = self.together = 0
        self.whole_to_torch = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(function) and args[0].numel() >= _QUERIES * 2:
            self.whole_to_torch = True
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and _KEYS in tensor.shape and tensor.untyped_storage().data_ptr() not in self.given:
                self._see(tensor)
        return result

    def _see(self, tensor: Tensor) -> None:
        rows = tensor.numel() // _KEYS
        self.largest = max(self.largest, rows)
        self.alive = [(ref, n) for ref, n in self.alive if ref() is not None]
        if tensor._base is None:
            self.alive.append((weakref.ref(tensor), rows))
        self.together = max(self.together, sum(n for _, n in self.alive))


def _watched(specimen: Specimen) -> _Tables | None:
    inputs = tuple(x.clone() for x in _LONG)
    tables = _Tables(inputs)

    def run():
        with torch.no_grad(), tables:
            specimen.answer(*inputs, _CHUNK)

    return None if specimen.guard.call(run).error is not None else tables


def _law(breaks, **options):
    """Return a law of the tables that breaks(tables) says to be broken."""

    def test(specimen: Specimen):
        tables = _watched(specimen)
        if tables is None or not breaks(tables):
            return None
        return {
            "seen on": f"query {tuple(_LONG[0].shape)}, key {tuple(_LONG[1].shape)}, value {tuple(_LONG[2].shape)}, chunk = {_CHUNK}",
            "yours": f"{max(tables.largest, tables.together if tables.largest <= _CHUNK else 0) or _QUERIES} rows at once",
            "expected": f"{_CHUNK} rows at once",
        }

    return Law(test, **options)


_PIECES = -(-_QUERIES // _CHUNK)


def _by_chunks(query, key, value, chunk, attend, starts=None, join=lambda parts: torch.cat(parts, dim=-2)):
    """Attend piece by piece: attend(rows of the query, start), at every start."""
    starts = range(0, query.size(-2), chunk) if starts is None else starts
    return join([attend(query[..., i : i + chunk, :], i) for i in starts])


def _piecewise(weigh=lambda scores, d, chunk: (scores / d**0.5).softmax(-1), starts=lambda length, chunk: range(0, length, chunk), **rest):
    """Return a mimic that goes wrong in how it weighs, where it starts, or how it joins."""

    def attend_in_chunks(query, key, value, chunk):
        def attend(rows, i):
            return weigh(rows @ key.transpose(-2, -1), query.size(-1), chunk) @ value

        return _by_chunks(query, key, value, chunk, attend, starts(query.size(-2), chunk), **rest)

    return attend_in_chunks


def _over_keys(join):
    """Return a mimic that cuts the keys instead, and joins what each piece of them gives."""

    def attend_in_chunks(query, key, value, chunk):
        parts = [
            reference_attention(query, key[..., i : i + chunk, :], value[..., i : i + chunk, :])[0] for i in range(0, key.size(-2), chunk)
        ]
        return join(parts)

    return attend_in_chunks


def _both_cut(query, key, value, chunk):
    pieces = zip(*(x.split(chunk, dim=-2) for x in (query, key, value)))
    return torch.cat([reference_attention(q, k, v)[0] for q, k, v in pieces], dim=-2)


attention_in_chunks = Exercise(
    "attention_in_chunks",
    signature="query key value chunk",
    expects="one tensor (..., T_q, d_v): the output of attention, made from at most chunk rows of the table at a time.",
    reference=lambda query, key, value, chunk: reference_attention(query, key, value)[0],
    parts=one_tensor("output"),
    read=read.TABLE,
    probes=[
        Probe("chunks that do not come out even", (_QUERY, _KEY, _VALUE, 3)),
        Probe("one chunk for all", (_QUERY, _KEY, _VALUE, 7)),
        Probe("a chunk longer than the text", (_QUERY, _KEY, _VALUE, 10)),
        Probe("row by row", (_QUERY, _KEY, _VALUE, 1)),
        Probe("a head axis in front", (*_HEADS, 3)),
        Probe("no batch axis", (_QUERY[0], _KEY[0], _VALUE[0], 2)),
        Probe("as many queries as keys", (_QUERY[:, :5], _KEY, _VALUE, 2)),
        Probe("gradients", (_QUERY, _KEY, _VALUE, 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "chunks_last_missing",
            "The last queries get no output where the chunks do not come out even.",
            _piecewise(starts=lambda length, chunk: range(0, length - chunk + 1, chunk)),
            _piecewise(starts=lambda length, chunk: range(0, length - chunk, chunk)),
        ),
        Mistake(
            "chunks_over_keys",
            "You cut the keys, and each piece of them shares out a whole budget of its own. A softmax needs all keys of its row.",
            _over_keys(sum),
            _over_keys(lambda parts: sum(parts) / len(parts)),
            _over_keys(lambda parts: torch.cat(parts, dim=-2)),
            _over_keys(lambda parts: parts[-1]),
        ),
        Mistake(
            "chunks_keys_cut_too",
            "Each piece of the queries meets its own piece of the keys alone. Every query asks all keys.",
            _both_cut,
        ),
        Mistake(
            "chunks_scale_missing",
            "The scores are not divided by the root of the number of features.",
            _piecewise(lambda scores, d, chunk: scores.softmax(-1)),
            read=read.SCALE,
        ),
        Mistake(
            "chunks_scale_of_chunk",
            "You divide by the root of the chunk. The number of features counts.",
            _piecewise(lambda scores, d, chunk: (scores / chunk**0.5).softmax(-1)),
            read=read.SCALE,
        ),
        Mistake(
            "chunks_softmax_over_queries",
            "Your softmax runs over the queries of a piece. It runs over the keys.",
            _piecewise(lambda scores, d, chunk: (scores / d**0.5).softmax(-2)),
            read=read.SOFTMAX,
        ),
        Mistake(
            "chunks_softmax_missing",
            "There is no softmax: the scores mix the values as they are.",
            _piecewise(lambda scores, d, chunk: scores / d**0.5),
            read=read.SOFTMAX,
        ),
        Mistake(
            "chunks_reversed",
            "The pieces of the output stand in the wrong order.",
            _piecewise(join=lambda parts: torch.cat(parts[::-1], dim=-2)),
        ),
        Mistake(
            "chunks_joined_on_another_axis",
            "The pieces of the output are joined along another axis than the one that was cut.",
            _piecewise(join=torch.cat),
            _piecewise(join=lambda parts: torch.cat(parts, dim=-1)),
            _piecewise(join=lambda parts: torch.cat(parts, dim=1)),
            _piecewise(join=torch.stack),
        ),
        Mistake(
            "chunks_one_piece_only",
            "You return one piece of the output, the others are lost.",
            _piecewise(join=lambda parts: parts[-1]),
            _piecewise(join=lambda parts: parts[0]),
        ),
        Mistake(
            "chunks_added",
            "The pieces of the output are added up. They belong to different queries.",
            _piecewise(join=sum),
        ),
        Mistake(
            "chunks_left_to_torch",
            "The numbers are right, but the whole text goes to PyTorch's product at once: your function cuts nothing.",
            _law(lambda tables: tables.whole_to_torch),
        ),
        Mistake(
            "chunks_number_of_pieces",
            "The numbers are right, but you cut into so many pieces, not into pieces of that size: they have too many rows.",
            _law(lambda tables: tables.largest == _PIECES),
        ),
        Mistake(
            "chunks_whole_table",
            "The numbers are right, but more rows of the table stand in memory than one chunk has.",
            _law(lambda tables: tables.largest > _CHUNK),
        ),
        Mistake(
            "chunks_kept",
            "The numbers are right, but you keep the tables of all pieces: together they are the whole table.",
            _law(lambda tables: tables.together >= _QUERIES),
        ),
    ],
)


def _fused(dropout):
    return seeded(lambda: planted.FusedLayer(4, dropout), 11)


def _buggy(x, dropout, training):
    return _fused(dropout).train(training)(x)


def _fused_right(x, dropout, training):
    layer = _fused(dropout)
    rate = dropout if training else 0.0
    return layer.w_o(F.scaled_dot_product_attention(layer.w_q(x), layer.w_k(x), layer.w_v(x), dropout_p=rate))


bug_dropout = BugHunt(
    "bug_dropout",
    signature="x dropout training",
    kinds={"dropout": "rate", "training": "flag"},
    expects="(x, dropout, training): x (B, T, 4), a rate, and True or False, such that the layer gives a wrong output.",
    reference=_fused_right,
    buggy=_buggy,
    read=read.DROP,
    lucky=(
        Lucky("hidden_by_no_dropout", "With a rate of 0 nothing is ever dropped, in whatever mode.", lambda x, dropout, training: dropout == 0),
        Lucky(
            "hidden_by_training",
            "In training mode dropout is meant to be at work. What should it do in the other mode?",
            lambda x, dropout, training: training,
        ),
    ),
)
