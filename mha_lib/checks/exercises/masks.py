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
from mha_lib.checks.recipe import Recipe, attention_with, clearing_with, on, softmax, softmax_by_hand
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


def _is_one_line(trials) -> bool:
    """Say whether every mask has one axis longer than 1 at most, where a square is asked for."""
    seen = [(t.seen.parts["mask"].numel(), t.probe.args[0]) for t in trials if t.seen.parts and t.probe.args[0] > 1]
    return len(seen) > 1 and all(cells == size for cells, size in seen)


ONE_AXIS = Mistake(
    "mask_of_one_axis",
    "Your mask has one axis of places, and needs two: the places of the queries in a column, beside those of the keys in a row.",
    Sign(_is_one_line),
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
        ONE_AXIS,
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
            "You take a sentence to end where its padding begins, or count the padding and block as many keys at the end. "
            "Padding may stand anywhere, or nowhere.",
            lambda t, p: (torch.arange(t.size(1)) < (t != p).sum(1, keepdim=True)).unsqueeze(1),
            lambda t, p: (t != p).long().cumprod(1).bool().unsqueeze(1),
            lambda t, p: (torch.arange(t.size(1)) < (t == p).int().argmax(1, keepdim=True)).unsqueeze(1),
        ),
        Mistake(
            "pad_of_one_sentence",
            "The padding of one sentence is used for all.",
            lambda t, p: (t[:1] != p).expand(t.size(0), -1).unsqueeze(1),
            lambda t, p: (t[-1:] != p).expand(t.size(0), -1).unsqueeze(1),
        ),
        Mistake(
            "pad_keeps_ids",
            "Your mask holds the ids of the real tokens. A word may have the id 0, and counts as blocked then: say True or False of each.",
            lambda t, p: (t * (t != p)).unsqueeze(1),
        ),
        Mistake(
            "pad_repeated",
            "You repeat the row for every query. One row is enough: an axis of size 1 stands for all queries.",
            lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1),
        ),
    ],
)


def _join_masks(steps, note, tokens, pad_id):
    return steps.join(steps.real(tokens, pad_id), steps.past(tokens.size(1)))


decoder_with = Recipe(
    _join_masks, real=lambda t, p: (t != p).unsqueeze(1), past=reference_causal, join=lambda real, past: real & past
)

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
            decoder_with(join=torch.logical_or),
        ),
        Mistake(
            "dec_pad_on_queries",
            "The padding blocks rows of queries. It is the padded keys that must not be seen.",
            decoder_with(real=lambda t, p: (t != p).unsqueeze(2)),
        ),
        Mistake(
            "dec_pad_on_both",
            "The padding blocks its rows too. A row without any key leaves its softmax nothing to share out.",
            decoder_with(real=lambda t, p: (t != p).unsqueeze(1) & (t != p).unsqueeze(2)),
        ),
        Mistake(
            "dec_padding_only",
            "The future is not blocked: tokens see those behind them.",
            decoder_with(past=_ones),
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
            decoder_with(past=lambda n: _ones(n).triu()),
            decoder_with(past=lambda n: _ones(n).triu(1)),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_excludes_self",
            "The diagonal is blocked: a token may not see itself.",
            decoder_with(past=lambda n: _ones(n).tril(-1)),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_sees_next",
            "Every token sees one place too far.",
            decoder_with(past=lambda n: _ones(n).tril(1)),
            read=read.CAUSAL,
        ),
        Mistake(
            "dec_inverted",
            "True and False are exchanged, in the whole or in one of the two masks.",
            decoder_with(real=lambda t, p: (t == p).unsqueeze(1)),
            decoder_with(join=lambda real, past: ~(real & past)),
            lambda t, p: (t == p).unsqueeze(1) | _ones(t.size(1)).triu(1),
            lambda t, p: ~reference_padding(t, p) & ~reference_causal(t.size(1)),
            read=read.MEANING,
        ),
        Mistake(
            "dec_exactly_one",
            "Your mask is True where exactly one of the rules holds.",
            decoder_with(join=torch.logical_xor),
        ),
        Mistake(
            "dec_hardcoded_zero",
            "Your padding id stands in your code; the one that is given is not used.",
            decoder_with(real=lambda t, p: (t != 0).unsqueeze(1)),
        ),
        Mistake(
            "dec_greater_than",
            "You compare the ids by size. A padding id is a name, not the smallest number.",
            decoder_with(real=lambda t, p: (t > p).unsqueeze(1)),
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


def _limits(steps, note, size, window):
    back = _distance(size)
    return steps.join(steps.past(back), steps.near(back, window))


window_with = Recipe(
    _limits, past=lambda back: back >= 0, near=lambda back, window: back < window, join=lambda past, near: past & near
)


def _by_slices(size, window):
    """Fill the mask row by row, with slices that may begin before the text."""
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    for i in range(size):
        mask[0, i, i - window + 1 : i + 1] = True
    return mask


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
            window_with(near=lambda back, w: back <= w),
        ),
        Mistake(
            "window_one_too_narrow",
            "Your window is one token too narrow.",
            window_with(near=lambda back, w: back < w - 1),
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
            window_with(past=lambda back: back == back),
        ),
        Mistake(
            "window_ahead",
            "Your window lies on the other side: a token and those after it.",
            lambda n, w: (-_distance(n) >= 0) & (-_distance(n) < w),
        ),
        Mistake(
            "window_whole_past",
            "The future is hidden, but the past is not cut off: that is a causal mask without a window.",
            window_with(near=lambda back, w: back == back),
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
            window_with(past=lambda back: back > 0),
            window_with(past=lambda back: back > 0, near=lambda back, w: back <= w),
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
            *(window_with(near=lambda back, w, f=f: back < f) for f in (1, 2, 3, 4, 5)),
        ),
        Mistake(
            "window_or",
            "You join the two limits with or: nearly every cell keeps one of them. A key must keep both.",
            window_with(join=torch.logical_or),
        ),
        Mistake(
            "window_wrong_sign",
            "The limit in the past lies on the other side of the diagonal, and hardly anything is left: below the diagonal its offset is negative.",
            *(lambda n, w, more=more: _ones(n).tril().triu(w + more) for more in (-1, 0, 1)),
        ),
        Mistake(
            "window_begins_before_the_text",
            "Your slices begin before the start of the text. A negative place counts from the end, and such a slice is empty.",
            _by_slices,
        ),
        Mistake(
            "window_around_the_end",
            "Your window goes around the end: the first tokens see the last ones.",
            lambda n, w: _distance(n) % n < w,
        ),
        Mistake(
            "window_two_places",
            "Your mask allows the token itself and the farthest one of its window. Those between them may be seen as well.",
            window_with(near=lambda back, w: (back == 0) | (back == w - 1)),
        ),
        ONE_AXIS,
    ],
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

def _divided_after(keep):
    def attention(query, key, value, mask):
        weights = keep(attention_with()(query, key, value)[1] * mask)
        return weights @ value, weights

    return attention


# Ways to make rows sum to 1 again.
_DIVIDED = (
    lambda w: w / w.sum(-1, keepdim=True),
    lambda w: (w / w.sum(-1, keepdim=True)).nan_to_num(0.0),
    lambda w: w / w.sum(-1, keepdim=True).clamp_min(1e-9),
    *(lambda w, low=low: w / (w.sum(-1, keepdim=True) + low) for low in (1e-12, 1e-9, 1e-8, 1e-6)),
)

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
        Probe("allowed scores far below blocked ones", _LOW_ALLOWED, tolerance=5e-4),
        Probe("a mask that blocks nothing", (*_SQUARE, torch.ones(1, 5, 5, dtype=torch.bool))),
        Probe("gradients", (*_SQUARE, _CAUSAL5), gradient=True, tolerance=1e-4),
        Probe("64-bit floats", (*(x.double() for x in _SQUARE), _CAUSAL5), judged=False, tolerance=1e-12),
        Probe(
            "an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False
        ),
    ],
    mistakes=[
        *MASKING,
        Mistake(
            "mask_after_softmax_shared_out",
            "Your softmax runs over all keys, and the mask comes after it. A blocked score far above the allowed ones has "
            "then taken the weight of the whole row, and there is nothing to share out.",
            *(_divided_after(divide) for divide in _DIVIDED),
        ),
        Mistake(
            "mask_exp_underflows",
            "The exponential is taken of the scores as they are. Very low ones all become 0, and nothing is left to share "
            "out: the largest allowed score of the row must come off first.",
            *(attention_with(normalise=softmax_by_hand(lambda s: 0.0, divide)) for divide in _DIVIDED),
        ),
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


def _kept_after(keep):
    """Return the mimic that fills right and clears wrong: keep(weights, mask)."""

    def attention(query, key, value, mask):
        weights = keep(attention_with(hide=lambda s, m: s.masked_fill(m == 0, _DEAF))(query, key, value, mask)[1], mask)
        return weights @ value, weights

    return attention


def _exp_times_mask(divide):
    def attention(query, key, value, mask):
        weights = divide((query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).exp() * mask)
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
        Probe("allowed scores far below blocked ones", _LOW_ALLOWED, tolerance=5e-4),
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
            lambda q, k, v, m: ((right := attention_with()(q, k, v, m))[0].nan_to_num(0.0), right[1]),
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
            *(_divided_after(divide) for divide in _DIVIDED),
        ),
        Mistake(
            "rows_exp_of_scores",
            "The exponential is taken of the scores as they are: a large one behind the mask becomes infinite, very low ones all "
            "become 0. The largest score of the row must come off first.",
            *(_exp_times_mask(divide) for divide in _DIVIDED),
        ),
        Mistake(
            "rows_clearing_inverted",
            "You clear the cells that are allowed, and keep those that are blocked.",
            _kept_after(lambda w, m: w.masked_fill(m, 0.0)),
        ),
        Mistake(
            "rows_cleared_if_any",
            "You clear every row in which some key is blocked. Only a row whose keys are all blocked is empty.",
            _kept_after(lambda w, m: w * m.all(-1, keepdim=True)),
        ),
        Mistake(
            "rows_of_keys",
            "You ask for each key whether any query sees it. The question is asked of each query, along its row.",
            _kept_after(lambda w, m: w * m.any(-2, keepdim=True)),
        ),
        Mistake(
            "rows_all_cleared",
            "One empty row makes you clear everything. The other rows keep their weights.",
            _kept_after(lambda w, m: torch.zeros_like(w) if bool(_empty(m).any()) else w),
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
