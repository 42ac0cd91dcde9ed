"""The checks of chapter 7: counting multiplications and bytes, a table in pieces, and a dropout that does not stop."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib import cost
from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Probe
from mha_lib.checks.compare import Unfit, a, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.chunks import CHUNKS
from mha_lib.checks.mistakes.counting import LONGEST_TEXT, MULTIPLICATIONS, longest
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
    mistakes=MULTIPLICATIONS,
)


longest_text = Exercise(
    "longest_text",
    signature="budget_bytes num_heads",
    expects="a whole number: the length of the longest text whose table of weights, in all heads, "
    "fits into the budget.",
    reference=longest,
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
    mistakes=LONGEST_TEXT,
)

_QUERY, _KEY, _VALUE = normal(2, 7, 8, seed=701), normal(2, 5, 8, seed=702), normal(2, 5, 6, seed=703)
_HEADS = (normal(2, 3, 7, 8, seed=704), normal(2, 3, 5, 8, seed=705), normal(2, 3, 5, 6, seed=706))

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
    mistakes=CHUNKS,
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
        Lucky(
            "hidden_by_no_dropout",
            "With a rate of 0 nothing is ever dropped, in whatever mode.",
            lambda x, dropout, training: dropout == 0,
        ),
        Lucky(
            "hidden_by_training",
            "In training mode dropout is meant to be at work. What should it do in the other mode?",
            lambda x, dropout, training: training,
        ),
    ),
)
