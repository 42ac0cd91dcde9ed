"""The checks of chapter 3: masks, and attention behind them."""

import functools
import math

import torch
from torch import Tensor

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Law, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, as_tensor, output_and_weights, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.attention import ATTENTION
from mha_lib.checks.mistakes.masking import MASKING
from mha_lib.checks.mistakes.scaling import SCALING
from mha_lib.checks.recipe import attention_with
from mha_lib.masks import causal_mask as reference_causal
from mha_lib.masks import decoder_mask as reference_decoder
from mha_lib.masks import padding_mask as reference_padding


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


def _holds_other_than_bool(specimen):
    got = specimen.guard.call(specimen.answer, *specimen.exercise.probes[0].args).value
    if not isinstance(got, Tensor) or got.dtype == torch.bool:
        return None
    return {"yours": str(got.dtype), "expected": "torch.bool"}


NOT_BOOL = Mistake(
    "mask_not_bool",
    "The places are right, but your mask holds numbers. Asked for is True and False.",
    Law(_holds_other_than_bool),
    read=read.MEANING,
)


def _ones(size):
    return torch.ones(1, size, size, dtype=torch.bool)


causal_mask = Exercise(
    "causal_mask",
    signature="size",
    expects="a mask of True and False, (1, size, size) or (size, size); True where query i may see key j.",
    reference=reference_causal,
    parts=functools.partial(_mask, prefix="causal", may_lack_batch=True),
    read=read.CAUSAL,
    probes=[Probe(f"size {n}", (n,)) for n in (3, 6, 2, 1, 5)],
    mistakes=[
        NOT_BOOL,
        Mistake(
            "causal_upper",
            "Your triangle is the other one: every token sees itself and the future, never the past.",
            lambda n: _ones(n).triu(),
        ),
        Mistake(
            "causal_excludes_self",
            "Your diagonal is blocked: a token may not see itself, and the first one sees nothing at all.",
            lambda n: _ones(n).tril(-1),
        ),
        Mistake(
            "causal_inverted",
            "True and False are exchanged: yours marks what is blocked.",
            lambda n: _ones(n).triu(1),
            read=read.MEANING,
        ),
        Mistake(
            "causal_sees_next",
            "Every token sees one place too far: the next token, which it should predict.",
            lambda n: _ones(n).tril(1),
        ),
        Mistake("causal_all_allowed", "Your mask blocks nothing.", lambda n: _ones(n)),
        Mistake("causal_all_blocked", "Your mask blocks everything.", lambda n: ~_ones(n)),
        Mistake(
            "causal_diagonal_only",
            "Every token sees itself alone; the past is blocked too.",
            lambda n: torch.eye(n, dtype=torch.bool),
            lambda n: ~torch.eye(n, dtype=torch.bool),
        ),
        Mistake(
            "causal_past_cut_short",
            "Your tokens see the last places only, not the whole past.",
            *(lambda n, w=w: _ones(n).tril().triu(-w) for w in (1, 2, 3)),
        ),
        Mistake(
            "causal_anti_diagonal",
            "Your triangle is flipped: it lies along the other diagonal.",
            lambda n: _ones(n).tril().flip(-1),
            lambda n: _ones(n).tril().flip(-2),
        ),
        Mistake(
            "causal_fixed_size",
            "Your mask has one size, whatever size is asked for.",
            Sign(
                lambda trials: (
                    len({t.seen.parts["mask"].shape for t in trials if t.seen.parts}) == 1
                    and len([t for t in trials if t.seen.parts]) > 1
                )
            ),
        ),
    ],
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
    mistakes=[
        NOT_BOOL,
        Mistake(
            "pad_inverted",
            "True and False are exchanged: yours marks the padding.",
            lambda t, p: (t == p).unsqueeze(1),
            read=read.MEANING,
        ),
        Mistake(
            "pad_both_axes",
            "You block the rows of padding too. A row without any key leaves its softmax nothing to share out.",
            lambda t, p: (t != p).unsqueeze(1) & (t != p).unsqueeze(2),
        ),
        Mistake(
            "pad_greater_than",
            "You compare the ids by size. A padding id is a name, not the smallest number.",
            lambda t, p: (t > p).unsqueeze(1),
            lambda t, p: (t < p).unsqueeze(1),
        ),
        Mistake(
            "pad_no_new_axis",
            "Your mask is (B, T). Against scores (B, T_q, T_k) its B would meet the queries.",
            lambda t, p: t != p,
        ),
        Mistake(
            "pad_on_queries",
            "Your new axis stands at the end: the mask blocks rows of queries instead of columns of keys.",
            lambda t, p: (t != p).unsqueeze(2),
        ),
        Mistake(
            "pad_axis_in_front",
            "Your new axis stands in front of the batch: the sentences meet the queries.",
            lambda t, p: (t != p).unsqueeze(0),
        ),
        Mistake(
            "pad_extra_axis",
            "There is one axis too many. The axis of the heads is put in later, by the layer.",
            lambda t, p: (t != p)[:, None, None],
        ),
        Mistake(
            "pad_transposed",
            "Sentences and tokens are exchanged: the mask of one sentence is spread over the batch.",
            lambda t, p: (t != p).transpose(0, 1).unsqueeze(1),
        ),
        Mistake(
            "pad_hardcoded_zero",
            "Your padding id stands in your code; the one that is given is not used.",
            lambda t, p: (t != 0).unsqueeze(1),
            lambda t, p: (t > 0).unsqueeze(1),
            lambda t, p: (t != 1).unsqueeze(1),
            lambda t, p: t.bool().unsqueeze(1),
        ),
        Mistake(
            "pad_assumes_the_end",
            "You count the padding and block as many keys at the end. Padding may stand in front.",
            lambda t, p: (torch.arange(t.size(1)) < (t != p).sum(1, keepdim=True)).unsqueeze(1),
            lambda t, p: (t != p).long().cumprod(1).bool().unsqueeze(1),
        ),
        Mistake(
            "pad_repeated",
            "You repeat the row for every query. One row is enough: an axis of size 1 stands for all queries.",
            lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1),
        ),
    ],
)


def _both(t, p):
    return reference_padding(t, p), reference_causal(t.size(1))


decoder_mask = Exercise(
    "decoder_mask",
    signature="tokens pad_id",
    expects="a mask of True and False, (B, T, T); True where the key is real and not ahead of the query.",
    reference=reference_decoder,
    parts=functools.partial(_mask, prefix="dec"),
    read=read.PADDING,
    probes=_PADDING_PROBES[:5],
    mistakes=[
        NOT_BOOL,
        Mistake(
            "dec_or_instead_of_and",
            "Your mask allows what either rule allows. A key must satisfy both.",
            lambda t, p: torch.logical_or(*_both(t, p)),
        ),
        Mistake(
            "dec_pad_on_queries",
            "The padding blocks rows of queries. It is the padded keys that must not be seen.",
            lambda t, p: (t != p).unsqueeze(2) & reference_causal(t.size(1)),
        ),
        Mistake(
            "dec_pad_on_both",
            "The padding blocks its rows too. A row without any key leaves its softmax nothing to share out.",
            lambda t, p: (t != p).unsqueeze(2) & reference_decoder(t, p),
        ),
        Mistake(
            "dec_padding_only",
            "Only the padding is blocked: tokens see the future.",
            lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1),
            lambda t, p: (t != p).unsqueeze(1),
        ),
        Mistake(
            "dec_causal_only",
            "Only the future is blocked: the padding is seen.",
            lambda t, p: reference_causal(t.size(1)).expand(t.size(0), -1, -1),
            lambda t, p: reference_causal(t.size(1)),
            lambda t, p: reference_causal(t.size(1))[0],
        ),
        Mistake(
            "dec_upper",
            "The triangle is the other one: tokens see the future and not the past.",
            lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).triu(),
            lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).triu(1),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_excludes_self",
            "The diagonal is blocked: a token may not see itself.",
            lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).tril(-1),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_sees_next",
            "Every token sees one place too far.",
            lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).tril(1),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_inverted",
            "True and False are exchanged, in the whole or in one of the two masks.",
            lambda t, p: ~reference_decoder(t, p),
            lambda t, p: (t == p).unsqueeze(1) & reference_causal(t.size(1)),
            lambda t, p: (t == p).unsqueeze(1) | _ones(t.size(1)).triu(1),
            lambda t, p: ~reference_padding(t, p) & ~reference_causal(t.size(1)),
            read=read.MEANING,
        ),
        Mistake(
            "dec_exactly_one",
            "Your mask is True where exactly one of the rules holds.",
            lambda t, p: torch.logical_xor(*_both(t, p)),
        ),
        Mistake(
            "dec_hardcoded_zero",
            "Your padding id stands in your code; the one that is given is not used.",
            lambda t, p: (t != 0).unsqueeze(1) & reference_causal(t.size(1)),
        ),
        Mistake(
            "dec_greater_than",
            "You compare the ids by size. A padding id is a name, not the smallest number.",
            lambda t, p: (t > p).unsqueeze(1) & reference_causal(t.size(1)),
        ),
        Mistake(
            "dec_extra_axis",
            "There is one axis too many. The axis of the heads is put in later, by the layer.",
            lambda t, p: reference_decoder(t, p).unsqueeze(1),
        ),
    ],
)

_CAUSAL5 = reference_causal(5)
_PAD_KEYS = reference_padding(torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 0]]), 0)
_HEADS_MASK = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 1]], dtype=torch.bool)[:, None, None]
_UNEVEN = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
_LOW_QUERY = normal(1, 5, 8, seed=50) - 100.0
_LOW_KEY = normal(1, 5, 8, seed=51) + 100.0
_SQUARE = (normal(2, 5, 8, seed=52), normal(2, 5, 8, seed=53), normal(2, 5, 6, seed=54))
_INFINITE_KEY = normal(2, 5, 8, seed=53).index_fill(1, torch.tensor([4]), 1e30)

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
        Probe("a mask that blocks nothing", (*_SQUARE, torch.ones(1, 5, 5, dtype=torch.bool))),
        Probe("gradients", (*_SQUARE, _CAUSAL5), gradient=True, tolerance=1e-4),
        Probe("64-bit floats", (*(x.double() for x in _SQUARE), _CAUSAL5), judged=False, tolerance=1e-12),
        Probe(
            "an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False
        ),
    ],
    mistakes=[
        *MASKING,
        *SCALING,
        *(m for m in ATTENTION if m.read != read.STABLE),  # no scores here that could overflow
    ],
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
            "All your allowed scores lie far above the fill. What if they were lower than it?",
            lambda query, key, value, mask: _leak_of(query, key, value, mask) > -8,
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value, mask: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
    ),
)
