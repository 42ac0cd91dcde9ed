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
from mha_lib.checks.recipe import attention_with, clearing_with, on, softmax
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

def _distance(size):
    places = torch.arange(size)
    return (places.unsqueeze(1) - places).unsqueeze(0)


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
    mistakes=[
        NOT_BOOL,
        Mistake(
            "window_one_too_wide",
            "Your window is one token too wide: the token itself counts as one of them.",
            lambda n, w: _ones(n).tril().triu(-w),
        ),
        Mistake(
            "window_one_too_narrow",
            "Your window is one token too narrow.",
            lambda n, w: _ones(n).tril().triu(2 - w),
        ),
        Mistake(
            "window_both_sides",
            "Your window reaches to both sides: tokens see ahead.",
            lambda n, w: _distance(n).abs() < w,
            lambda n, w: _distance(n).abs() <= w,
            lambda n, w: _distance(n).abs() <= w // 2,
            lambda n, w: _distance(n).abs() <= (w - 1) // 2,
        ),
        Mistake(
            "window_open_ahead",
            "The past is cut off where it should be, but nothing hides the future.",
            lambda n, w: _ones(n).triu(1 - w),
            lambda n, w: _ones(n).triu(-w),
        ),
        Mistake(
            "window_ahead",
            "Your window lies on the other side: a token and those after it.",
            lambda n, w: (-_distance(n) >= 0) & (-_distance(n) < w),
        ),
        Mistake(
            "window_whole_past",
            "The future is hidden, but the past is not cut off: that is a causal mask without a window.",
            lambda n, w: _ones(n).tril(),
        ),
        Mistake(
            "window_inverted",
            "True and False are exchanged: yours marks what is blocked.",
            lambda n, w: ~reference_window(n, w),
            read=read.MEANING,
        ),
        Mistake(
            "window_excludes_self",
            "A token may not see itself in your mask. With a window of 1 it would see nothing.",
            lambda n, w: (_distance(n) > 0) & (_distance(n) < w),
            lambda n, w: (_distance(n) > 0) & (_distance(n) <= w),
        ),
        Mistake(
            "window_blocks",
            "You cut the text into blocks. A window moves along: every token has its own.",
            lambda n, w: (torch.arange(n).unsqueeze(1) // w == torch.arange(n) // w).unsqueeze(0),
            lambda n, w: (torch.arange(n).unsqueeze(1) // w == torch.arange(n) // w).unsqueeze(0) & _ones(n).tril(),
        ),
        Mistake(
            "window_at_the_start",
            "Your window stays at the start of the text. It ends at the query.",
            lambda n, w: _ones(n).tril() & (torch.arange(n) < w),
        ),
        Mistake(
            "window_fixed",
            "Your window has one width, whatever width is asked for.",
            *(lambda n, w, f=f: _ones(n).tril().triu(1 - f) for f in (1, 2, 3, 4, 5)),
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


_ONE_EMPTY = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], dtype=torch.bool)
_LEFT = reference_decoder(torch.tensor([[0, 0, 7, 4, 9], [3, 8, 5, 6, 2]]), 0)
_NOTHING_REAL = reference_padding(torch.tensor([[0, 0, 0, 0, 0, 0], [6, 7, 8, 9, 0, 0]]), 0)
_CROSS = (normal(2, 3, 8, seed=65), normal(2, 5, 8, seed=66), normal(2, 5, 6, seed=67))
_LARGE_BEHIND = _CROSS[1].clone()
_LARGE_BEHIND[:, 1] = 300.0 * _CROSS[0][:, 0]  # query 0 may not see key 1, which fits it far too well
_DEAF = torch.finfo(torch.float32).min


def _empty(mask):
    return ~(mask != 0).any(-1, keepdim=True)


def _opened(open):
    """Return the mimic that changes the mask of empty rows before it attends."""
    return lambda q, k, v, m: reference_attention(q, k, v, m | (_empty(m) & open(q.size(-2), k.size(-2))))


def _divided_after(keep):
    def attention(query, key, value, mask):
        weights = keep(attention_with()(query, key, value)[1] * mask)
        return weights @ value, weights

    return attention


def _half_cleared(output: bool):
    def attention(query, key, value, mask):
        even = attention_with(hide=lambda s, m: s.masked_fill(m == 0, _DEAF))(query, key, value, mask)
        right = reference_attention(query, key, value, mask)
        return (right[0], even[1]) if output else (even[0], right[1])

    return attention


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
                normal(2, 3, 4, 9, seed=74), normal(2, 3, 6, 9, seed=75), normal(2, 3, 6, 7, seed=76),
                _NOTHING_REAL.unsqueeze(1),
            ),
        ),
        Probe("every row has a key", (*_SQUARE, _CAUSAL5)),
        Probe("a large score behind the mask", (_CROSS[0], _LARGE_BEHIND, _CROSS[2], _ONE_EMPTY)),
        Probe("very low scores", (_LOW_QUERY, _LOW_KEY, normal(1, 5, 6, seed=64), _CAUSAL5), tolerance=5e-4),
        Probe("gradients", (*_CROSS, _ONE_EMPTY), gradient=True, tolerance=1e-4),
        Probe(
            "an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False
        ),
    ],
    mistakes=[
        Mistake(
            "rows_nan",
            "Where every key of a row is blocked, your row is NaN: minus infinity everywhere makes 0/0.",
            clearing_with(normalise=softmax),
        ),
        Mistake(
            "rows_even",
            "A row without any allowed key shares out its attention evenly, over keys that are all blocked.",
            *(clearing_with(hide=lambda s, m, f=f: s.masked_fill(m == 0, f)) for f in (-1e9, -1e10, -1e30, _DEAF)),
            *(clearing_with(hide=lambda s, m, f=f: torch.where(m == 0, f, s)) for f in (-1e9, _DEAF)),
        ),
        Mistake(
            "rows_weights_left",
            "Your output of an empty row is 0, but its weights are not.",
            _half_cleared(output=True),
            lambda q, k, v, m: (reference_attention(q, k, v, m)[0], attention_with()(q, k, v, m)[1]),
        ),
        Mistake(
            "rows_output_left",
            "The weights of an empty row are 0, but its output was mixed before you cleared them.",
            _half_cleared(output=False),
            lambda q, k, v, m: (attention_with()(q, k, v, m)[0], reference_attention(q, k, v, m)[1]),
        ),
        Mistake(
            "rows_gradient_nan",
            "The numbers are right, but the gradient is NaN: a NaN arises on the way and is covered up afterwards.",
            clearing_with(hide=lambda s, m: s + torch.zeros_like(s).masked_fill(m == 0, -math.inf)),
            clearing_with(hide=lambda s, m: s + torch.where(m != 0, 0.0, -math.inf)),
        ),
        Mistake(
            "rows_see_themselves",
            "You let an empty row see a key that its mask blocks: itself, or the first.",
            _opened(lambda rows, columns: torch.eye(rows, columns, dtype=torch.bool)),
            _opened(lambda rows, columns: torch.arange(columns) == 0),
        ),
        Mistake(
            "rows_see_everything",
            "For an empty row you lift the mask: it sees every key.",
            _opened(lambda rows, columns: torch.ones(rows, columns, dtype=torch.bool)),
        ),
        Mistake(
            "rows_masked_after_softmax",
            "Your softmax runs over all keys, and the mask comes after it. A large score behind the mask then takes "
            "the weight of the whole row.",
            _divided_after(lambda w: w / w.sum(-1, keepdim=True).clamp_min(1e-9)),
            _divided_after(lambda w: w / (w.sum(-1, keepdim=True) + 1e-9)),
            _divided_after(lambda w: (w / w.sum(-1, keepdim=True)).nan_to_num(0.0)),
            _divided_after(lambda w: w / (w.sum(-1, keepdim=True) + 1e-8)),
            _divided_after(lambda w: w / (w.sum(-1, keepdim=True) + 1e-6)),
        ),
        Mistake(
            "rows_mask_not_shared_out",
            "You set weights to 0 after the softmax. The empty rows are right, but in all others weight is lost.",
            _divided_after(lambda w: w),
        ),
        *on(clearing_with, MASKING, without=("mask_tilde_on_int", "mask_fill_minus_1e_minus_9")),
        *on(clearing_with, SCALING),
        *on(
            clearing_with,
            tuple(m for m in ATTENTION if m.read != read.STABLE),
            without=("att_softmax_over_queries", "att_scores_from_value", "att_elementwise"),  # others give the same here
        ),
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
            "In every row some allowed score lies far above the fill, and takes the weight. In one row all of them must be low.",
            lambda query, key, value, mask: _leak_of(query, key, value, mask) > -8,
        ),
        Lucky(
            "hidden_by_equal_values",
            "All values are alike here, so every mixture of them is the same.",
            lambda query, key, value, mask: float(value.max(-2).values.sub(value.min(-2).values).max()) < 1e-3,
        ),
    ),
)
