"""The checks of chapter 3: masks, and attention behind them."""

import functools
import math

import torch
from torch import Tensor

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import REMARK, Law, Mistake, Probe
from mha_lib.checks.compare import Unfit, as_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.empty_rows import BLOCKED_ROWS, UNDERFLOWS
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.masks import CAUSAL, DECODER, PADDING, WINDOW
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import attention_with, clearing_with
from mha_lib.masks import causal_mask as reference_causal
from mha_lib.masks import decoder_mask as reference_decoder
from mha_lib.masks import padding_mask as reference_padding
from mha_lib.masks import window_mask as reference_window


def _mask(value: object, *, prefix: str, may_lack_batch: bool = False) -> dict[str, Tensor]:
    refuse_none(value)
    mask = as_tensor(value, "mask")
    if mask.is_floating_point() and bool((mask < -1).any()):
        raise Unfit(
            f"{prefix}_additive",
            "Your mask holds 0 and large negative numbers, to be added to the scores. Asked for is True where a query "
            "may attend; read as True and False, yours means the opposite.",
        )
    if may_lack_batch and mask.dim() == 2:
        mask = mask.unsqueeze(0)
    return {"mask": (mask != 0).double()}


causal_mask = Exercise(
    "causal_mask",
    signature="size",
    expects="a mask of True and False, (1, size, size) or (size, size); True where query i may see key j.",
    reference=reference_causal,
    parts=functools.partial(_mask, prefix="causal", may_lack_batch=True),
    read=read.CAUSAL,
    probes=[Probe(f"size {n}", (n,)) for n in (3, 6, 2, 1, 5)],
    mistakes=CAUSAL,
)

_TOKENS = [
    ("padding at the end", [[5, 6, 7, 0, 0], [8, 9, 3, 4, 0], [1, 2, 3, 4, 5]], 0),
    ("padding is 1 and 0 a word", [[0, 6, 0, 1, 1], [8, 0, 3, 4, 1]], 1),
    ("padding is the largest id", [[5, 6, 9, 9], [0, 2, 3, 9], [1, 2, 3, 4]], 9),
    ("padding in front", [[0, 0, 5, 6], [0, 7, 8, 9], [1, 2, 3, 4]], 0),
    ("no padding", [[5, 6, 7], [8, 9, 3]], 0),
    ("as many sentences as tokens", [[5, 6, 0], [8, 0, 0], [1, 2, 3]], 0),
    ("one sentence", [[5, 6, 7, 0]], 0),
]
_PADDING_PROBES = [Probe(label, (torch.tensor(tokens), pad)) for label, tokens, pad in _TOKENS]

padding_mask = Exercise(
    "padding_mask",
    signature="tokens pad_id",
    expects="a mask of True and False, (B, 1, T); True where the key is a real token.",
    reference=reference_padding,
    parts=functools.partial(_mask, prefix="pad"),
    read=read.PADDING,
    probes=_PADDING_PROBES,
    mistakes=PADDING,
)


decoder_mask = Exercise(
    "decoder_mask",
    signature="tokens pad_id",
    expects="a mask of True and False, (B, T, T); True where the key is real and not ahead of the query.",
    reference=reference_decoder,
    parts=functools.partial(_mask, prefix="dec"),
    read=read.PADDING,
    probes=_PADDING_PROBES[:5],
    mistakes=DECODER,
)


window_mask = Exercise(
    "window_mask",
    signature="size window",
    expects="a mask of True and False, (1, size, size) or (size, size); "
    "True where key j is query i itself or one of the window - 1 tokens before it.",
    reference=reference_window,
    parts=functools.partial(_mask, prefix="window", may_lack_batch=True),
    read=read.WINDOW,
    probes=[
        Probe("8 tokens, a window of 3", (8, 3)),
        Probe("7 tokens, a window of 2", (7, 2)),
        Probe("9 tokens, a window of 5", (9, 5)),
        Probe("a window of 1", (5, 1)),
        Probe("a window as long as the text", (4, 4)),
        Probe("a window longer than the text", (3, 6)),
    ],
    mistakes=WINDOW,
)

_CAUSAL5 = reference_causal(5)
_PAD_KEYS = reference_padding(torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 0]]), 0)
_HEADS_MASK = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 1]], dtype=torch.bool)[:, None, None]
_UNEVEN = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
_LOW_QUERY = normal(1, 5, 8, seed=50) - 100.0
_LOW_KEY = normal(1, 5, 8, seed=51) + 100.0
_SQUARE = (normal(2, 5, 8, seed=52), normal(2, 5, 8, seed=53), normal(2, 5, 6, seed=54))
_LOW_ALLOWED = (
    _LOW_QUERY,
    torch.cat([_LOW_KEY[:, :3], normal(1, 2, 8, seed=48)], 1),
    normal(1, 5, 6, seed=64),
    (torch.arange(5) < 3).reshape(1, 1, 5),
)  # scores near -28000 for the keys 0 to 2, near 0 for the blocked ones
_INFINITE_KEY = normal(2, 5, 8, seed=53).index_fill(1, torch.tensor([4]), 1e30)

def _rounds_to_nothing(specimen):
    call = specimen.guard.call(lambda: specimen.answer(*(x.clone() for x in _LOW_ALLOWED)))
    sums = None if call.error is not None else call.value[1].sum(-1)
    if sums is None or torch.allclose(sums, torch.ones_like(sums), atol=0.01):
        return None
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(("query", "key", "value", "mask"), _LOW_ALLOWED))
    return {"seen on": shapes, "yours": f"rows of weights that sum to {float(sums.flatten()[0]):.0f}"}


masked_attention = Exercise(
    "masked_attention",
    signature="query key value mask",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k), 0 where the mask blocks.",
    reference=attention_with,
    parts=output_and_weights,
    read=read.INFINITY,
    probes=[
        Probe("a causal mask", (*_SQUARE, _CAUSAL5)),
        Probe(
            "padding in cross-attention",
            (normal(2, 3, 8, seed=55), normal(2, 5, 8, seed=56), normal(2, 5, 6, seed=57), _PAD_KEYS),
        ),
        Probe(
            "a head axis in front",
            (normal(2, 3, 4, 8, seed=58), normal(2, 3, 6, 8, seed=59), normal(2, 3, 6, 7, seed=60), _HEADS_MASK),
        ),
        Probe(
            "a mask without a batch axis",
            (normal(2, 3, 8, seed=61), normal(2, 4, 8, seed=62), normal(2, 4, 6, seed=63), _UNEVEN),
        ),
        Probe("integers 0 and 1", (*_SQUARE, _CAUSAL5.long())),
        Probe("very low scores", (_LOW_QUERY, _LOW_KEY, normal(1, 5, 6, seed=64), _CAUSAL5), tolerance=5e-4),
        Probe("allowed scores far below blocked ones", _LOW_ALLOWED, judged=False, tolerance=5e-4),
        Probe("a mask that blocks nothing", (*_SQUARE, torch.ones(1, 5, 5, dtype=torch.bool))),
        Probe("gradients", (*_SQUARE, _CAUSAL5), gradient=True, tolerance=1e-4),
        Probe("64-bit floats", (*(x.double() for x in _SQUARE), _CAUSAL5), judged=False, tolerance=1e-12),
        Probe(
            "an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False
        ),
    ],
    mistakes=[
        *MASKING,
        UNDERFLOWS,
        *SCALING,
        *(m for m in ATTENTION if m.read != read.STABLE),  # no scores here that could overflow
        Mistake(
            "mask_rounds_to_nothing",
            "But where the allowed scores lie far below blocked ones, the softmax has rounded their weights to 0 before "
            "the mask comes: nothing is left to share out.",
            Law(_rounds_to_nothing, REMARK),
        ),
    ],
)


_ONE_EMPTY = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], dtype=torch.bool)
_LEFT = reference_decoder(torch.tensor([[0, 0, 7, 4, 9], [3, 8, 5, 6, 2]]), 0)
_NOTHING_REAL = reference_padding(torch.tensor([[0, 0, 0, 0, 0, 0], [6, 7, 8, 9, 0, 0]]), 0)
_CROSS = (normal(2, 3, 8, seed=65), normal(2, 5, 8, seed=66), normal(2, 5, 6, seed=67))
_LARGE_BEHIND = _CROSS[1].clone()
_LARGE_BEHIND[:, 1] = 300.0 * _CROSS[0][:, 0]  # query 0 may not see key 1, which fits it far too well


blocked_rows = Exercise(
    "blocked_rows",
    signature="query key value mask",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k); "
    "a row without any allowed key is 0 in both.",
    reference=clearing_with,
    parts=output_and_weights,
    read=read.EMPTY,
    probes=[
        Probe("one row without a key", (*_CROSS, _ONE_EMPTY)),
        Probe(
            "padding in front, under a causal mask",
            (normal(2, 5, 8, seed=68), normal(2, 5, 8, seed=69), normal(2, 5, 6, seed=70), _LEFT),
        ),
        Probe(
            "a sentence of nothing but padding",
            (normal(2, 3, 8, seed=71), normal(2, 6, 8, seed=72), normal(2, 6, 5, seed=73), _NOTHING_REAL),
        ),
        Probe(
            "a head axis in front",
            (
                normal(2, 3, 4, 9, seed=74),
                normal(2, 3, 6, 9, seed=75),
                normal(2, 3, 6, 7, seed=76),
                _NOTHING_REAL.unsqueeze(1),
            ),
        ),
        Probe("every row has a key", (*_SQUARE, _CAUSAL5)),
        Probe("a large score behind the mask", (_CROSS[0], _LARGE_BEHIND, _CROSS[2], _ONE_EMPTY)),
        Probe("very low scores", (_LOW_QUERY, _LOW_KEY, normal(1, 5, 6, seed=64), _CAUSAL5), tolerance=5e-4),
        Probe("allowed scores far below blocked ones", _LOW_ALLOWED, tolerance=5e-4),
        Probe("gradients", (*_CROSS, _ONE_EMPTY), gradient=True, tolerance=1e-4),
        Probe(
            "an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False
        ),
    ],
    mistakes=BLOCKED_ROWS,
)


def _leak_of(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    return float(scores.masked_fill(~mask, -math.inf).amax(-1).min())


bug_masking = BugHunt(
    "bug_masking",
    signature="query key value mask",
    expects="the arguments (query, key, value, mask) of a call on which the function gives a wrong output.",
    reference=lambda *args: reference_attention(*args)[0],
    buggy=planted.attention_masked,
    read=read.FAIL,
    kinds={"mask": "mask"},
    lucky=(
        Lucky(
            "hidden_by_open_mask",
            "Your mask blocks nothing, so the fill never appears.",
            lambda query, key, value, mask: bool(mask.all()),
        ),
        Lucky(
            "shows_an_empty_row",
            "Your mask blocks a whole row. That is another matter; let every query see at least one key.",
            lambda query, key, value, mask: bool((~mask.any(-1)).any()),
        ),
        Lucky(
            "hidden_by_high_scores",
            "In every row some allowed score lies far above the fill, and takes the weight. In one row all of them "
            "must be low.",
            lambda query, key, value, mask: _leak_of(query, key, value, mask) > -8,
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value, mask: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
    ),
)
