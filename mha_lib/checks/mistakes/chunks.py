"""The known mistakes in attention piece by piece, and what watches the tables it makes."""

import weakref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import read
from mha_lib.checks.case import Law, Mistake
from mha_lib.checks.exercise import Specimen
from mha_lib.checks.inputs import normal

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
            if (
                isinstance(tensor, Tensor)
                and _KEYS in tensor.shape
                and tensor.untyped_storage().data_ptr() not in self.given
            ):
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
        shapes = [f"{name} {tuple(x.shape)}" for name, x in zip(("query", "key", "value"), _LONG)]
        rows = max(tables.largest, tables.together if tables.largest <= _CHUNK else 0) or _QUERIES
        return {
            "seen on": f"{', '.join(shapes)}, chunk = {_CHUNK}",
            "yours": f"{rows} rows at once",
            "expected": f"{_CHUNK} rows at once",
        }

    return Law(test, **options)


_PIECES = -(-_QUERIES // _CHUNK)


def _by_chunks(query, key, value, chunk, attend, starts=None, join=lambda parts: torch.cat(parts, dim=-2)):
    """Attend piece by piece: attend(rows of the query, start), at every start."""
    starts = range(0, query.size(-2), chunk) if starts is None else starts
    return join([attend(query[..., i : i + chunk, :], i) for i in starts])


def _piecewise(
    weigh=lambda scores, d, chunk: (scores / d**0.5).softmax(-1),
    starts=lambda length, chunk: range(0, length, chunk),
    **rest,
):
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
            reference_attention(query, key[..., i : i + chunk, :], value[..., i : i + chunk, :])[0]
            for i in range(0, key.size(-2), chunk)
        ]
        return join(parts)

    return attend_in_chunks


def _both_cut(query, key, value, chunk):
    pieces = zip(*(x.split(chunk, dim=-2) for x in (query, key, value)))
    return torch.cat([reference_attention(q, k, v)[0] for q, k, v in pieces], dim=-2)


def _cut(axis, join, rows=lambda query, i, chunk: query[..., i : i + chunk, :], part=0, values=False, step=None):
    """Return a mimic that cuts with split along an axis, or, without one, takes rows(query, start, chunk) in a loop."""

    def attend_in_chunks(query, key, value, chunk):
        if axis is None:
            pieces = [rows(query, i, chunk) for i in range(0, query.size(-2), step or chunk)]
        else:
            pieces = query.split(chunk, axis)
        others = value.split(chunk, -2) if values else [value] * len(pieces)
        return torch.cat([reference_attention(q, key, v)[part] for q, v in zip(pieces, others)], join)

    return attend_in_chunks


CHUNKS = (
    Mistake(
        "chunks_last_missing",
        "The last queries get no output where the chunks do not come out even.",
        _piecewise(starts=lambda length, chunk: range(0, length - chunk + 1, chunk)),
        _piecewise(starts=lambda length, chunk: range(0, length - chunk, chunk)),
    ),
    Mistake(
        "chunks_over_keys",
        "You cut the keys, and each piece of them shares out a whole budget of its own. A softmax needs all keys of "
        "its row.",
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
        "chunks_of_sentences",
        "You cut the sentences, along axis 0: split and square brackets take the first axis unless they are told "
        "another.",
        _cut(0, 0),
        _cut(0, -2),
        _cut(None, -2, lambda query, i, chunk: query[i : i + chunk]),
        _cut(None, 0, lambda query, i, chunk: query[i : i + chunk]),
    ),
    Mistake(
        "chunks_of_features",
        "You cut the features of the queries. It is their rows that do not need each other.",
        _cut(-1, -1),
        _cut(-1, -2),
    ),
    Mistake(
        "chunks_axis_from_front",
        "Your axis is counted from the front. That of the queries is the last but one, however many stand in front.",
        _cut(1, 1),
        _cut(1, -2),
    ),
    Mistake(
        "chunks_overlap",
        "Your pieces overlap: a piece begins before the one in front of it has ended.",
        _cut(None, -2, step=1),
        _cut(None, -2, lambda query, i, chunk: query[..., i : i + chunk + 1, :]),
    ),
    Mistake(
        "chunks_values_cut",
        "You cut the values as well. Every query mixes all of them.",
        _cut(-2, -2, values=True),
    ),
    Mistake(
        "chunks_of_weights", "You join the weights of the pieces. Their output is asked for.", _cut(-2, -2, part=1)
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
        "The numbers are right, but you cut into so many pieces, not into pieces of that size: they have too many "
        "rows.",
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
)
