"""The known mistakes in making masks."""

import torch
from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import Law, Mistake, Sign
from mha_lib.checks.recipe import Recipe
from mha_lib.masks import causal_mask as reference_causal
from mha_lib.masks import decoder_mask as reference_decoder
from mha_lib.masks import padding_mask as reference_padding
from mha_lib.masks import window_mask as reference_window


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
    "Your mask has one axis of places, and needs two: the places of the queries in a column, beside those of the keys "
    "in a row.",
    Sign(_is_one_line),
)


def _ones(size):
    return torch.ones(1, size, size, dtype=torch.bool)


CAUSAL = (
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
)

PADDING = (
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
        "Your mask holds the ids of the real tokens. A word may have the id 0, and counts as blocked then: say True "
        "or False of each.",
        lambda t, p: (t * (t != p)).unsqueeze(1),
    ),
    Mistake(
        "pad_repeated",
        "You repeat the row for every query. One row is enough: an axis of size 1 stands for all queries.",
        lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1),
    ),
)


def _join_masks(steps, note, tokens, pad_id):
    return steps.join(steps.real(tokens, pad_id), steps.past(tokens.size(1)))


decoder_with = Recipe(
    _join_masks, real=lambda t, p: (t != p).unsqueeze(1), past=reference_causal, join=lambda real, past: real & past
)

DECODER = (
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


WINDOW = (
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
        "window_limit_turned",
        "Your limit in the past is turned around: what is near is blocked, and what is far may be seen.",
        window_with(near=lambda back, w: back > w),
        window_with(near=lambda back, w: back >= w),
    ),
    Mistake(
        "window_or",
        "You join the two limits with or: nearly every cell keeps one of them. A key must keep both.",
        window_with(join=torch.logical_or),
    ),
    Mistake(
        "window_wrong_sign",
        "The limit in the past lies on the other side of the diagonal, and hardly anything is left: below the "
        "diagonal its offset is negative.",
        *(lambda n, w, more=more: _ones(n).tril().triu(w + more) for more in (-1, 0, 1)),
    ),
    Mistake(
        "window_begins_before_the_text",
        "Your slices begin before the start of the text. A negative place counts from the end, and such a slice is "
        "empty.",
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
)
