"""The checks of chapter 3."""

import functools
import math

import torch
from torch import Tensor, nn

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted
from mha_lib.checks.attention_mistakes import ATTENTION_MISTAKES, SCALING_MISTAKES, STABLE
from mha_lib.checks.bug_hunt import BugHunt, Lucky
from mha_lib.checks.engine import Exercise, Fresh, Mistake, Probe, Unfit, as_tensor, output_and_weights, refuse_none
from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.variants import attention_with, softmax
from mha_lib.masks import causal_mask as reference_causal
from mha_lib.masks import decoder_mask as reference_decoder
from mha_lib.masks import padding_mask as reference_padding
from mha_lib.masks import to_torch_mask
from mha_lib.experiments.training import seeded

FAIL = "notebook 03, “Ways that fail”"
INFINITY = "notebook 03, “Minus infinity, before the softmax”"
CAUSAL = "notebook 03, “The causal mask”"
PADDING = "notebook 03, “Padding”"
MEANING = "notebook 03, “What does True mean?”"


class MaskExercise(Exercise):
    """A check of a function that builds a mask: the places first, then that they are True and False."""

    def laws(self, answer: object, guard: Guard):
        got = guard.call(answer, *self.probes[0].args).value
        if isinstance(got, Tensor) and got.dtype != torch.bool:
            return (
                "mask_not_bool",
                f"The places are right, but your mask holds {got.dtype}. Asked for is True and False.",
                {"yours": str(got.dtype), "expected": "torch.bool"},
            )
        return None


def _mask(value: object, *, may_lack_batch: bool = False) -> dict[str, Tensor]:
    refuse_none(value)
    mask = as_tensor(value, "mask")
    if mask.is_floating_point() and mask.isinf().any():
        raise Unfit(
            "causal_additive",
            "Your mask holds 0 and -inf, to be added to the scores. Asked for is True where a query may attend; "
            "read as True and False, yours means the opposite.",
        )
    if may_lack_batch and mask.dim() == 2:
        mask = mask.unsqueeze(0)
    return {"mask": (mask != 0).double()}


def _ones(size):
    return torch.ones(1, size, size, dtype=torch.bool)


causal_mask = MaskExercise(
    "causal_mask",
    signature="size",
    expects="a mask of True and False, (1, size, size) or (size, size); True where query i may see key j.",
    reference=reference_causal,
    parts=functools.partial(_mask, may_lack_batch=True),
    read=CAUSAL,
    probes=[Probe(f"size {n}", (n,)) for n in (3, 6, 2, 1, 5)],
    mistakes=[
        Mistake(
            "causal_upper",
            "Your triangle is the other one: every token sees itself and the future, never the past.",
            CAUSAL,
            (lambda n: _ones(n).triu(),),
        ),
        Mistake(
            "causal_excludes_self",
            "Your diagonal is blocked: a token may not see itself, and the first one sees nothing at all.",
            CAUSAL,
            (lambda n: _ones(n).tril(-1),),
        ),
        Mistake(
            "causal_inverted",
            "True and False are exchanged: yours marks what is blocked.",
            MEANING,
            (lambda n: _ones(n).triu(1),),
        ),
        Mistake(
            "causal_sees_next",
            "Every token sees one place too far: the next token, which it should predict.",
            CAUSAL,
            (lambda n: _ones(n).tril(1),),
        ),
        Mistake(
            "causal_all_allowed",
            "Your mask blocks nothing.",
            CAUSAL,
            (lambda n: _ones(n),),
        ),
        Mistake(
            "causal_all_blocked",
            "Your mask blocks everything.",
            CAUSAL,
            (lambda n: ~_ones(n),),
        ),
        Mistake(
            "causal_diagonal_only",
            "Every token sees itself alone; the past is blocked too.",
            CAUSAL,
            (lambda n: torch.eye(n, dtype=torch.bool), lambda n: ~torch.eye(n, dtype=torch.bool)),
        ),
        Mistake(
            "causal_past_cut_short",
            "Your tokens see the last places only, not the whole past.",
            CAUSAL,
            tuple(lambda n, w=w: _ones(n).tril().triu(-w) for w in (1, 2, 3)),
        ),
        Mistake(
            "causal_anti_diagonal",
            "Your triangle is flipped: it lies along the other diagonal.",
            CAUSAL,
            (lambda n: _ones(n).tril().flip(-1), lambda n: _ones(n).tril().flip(-2)),
        ),
        Mistake(
            "causal_fixed_size",
            "Your mask has one size, whatever size is asked for.",
            CAUSAL,
            sign=lambda trials: len({t.seen.parts["mask"].shape for t in trials if t.seen.parts}) == 1
            and len([t for t in trials if t.seen.parts]) > 1,
        ),
        Mistake(
            "causal_additive",
            "Your mask holds 0 and -inf, to be added to the scores. Asked for is True where a query may attend; "
            "read as True and False, yours means the opposite.",
            MEANING,
            (lambda n: torch.full((1, n, n), -math.inf).triu(1),),
            sign=lambda trials: any(isinstance(t.seen.error, Unfit) and t.seen.error.id == "causal_additive" for t in trials),
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

padding_mask = MaskExercise(
    "padding_mask",
    signature="tokens pad_id",
    expects="a mask of True and False, (B, 1, T); True where the key is a real token.",
    reference=reference_padding,
    parts=_mask,
    read=PADDING,
    probes=_PADDING_PROBES,
    mistakes=[
        Mistake(
            "pad_inverted",
            "True and False are exchanged: yours marks the padding.",
            MEANING,
            (lambda t, p: (t == p).unsqueeze(1),),
        ),
        Mistake(
            "pad_both_axes",
            "You block the rows of padding too. A row without any key leaves its softmax nothing to share out.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(1) & (t != p).unsqueeze(2),),
        ),
        Mistake(
            "pad_greater_than",
            "You compare the ids by size. A padding id is a name, not the smallest number.",
            PADDING,
            (lambda t, p: (t > p).unsqueeze(1), lambda t, p: (t < p).unsqueeze(1)),
        ),
        Mistake(
            "pad_no_new_axis",
            "Your mask is (B, T). Against scores (B, T_q, T_k) its B would meet the queries.",
            PADDING,
            (lambda t, p: t != p,),
        ),
        Mistake(
            "pad_on_queries",
            "Your new axis stands at the end: the mask blocks rows of queries instead of columns of keys.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(2),),
        ),
        Mistake(
            "pad_axis_in_front",
            "Your new axis stands in front of the batch: the sentences meet the queries.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(0),),
        ),
        Mistake(
            "pad_extra_axis",
            "There is one axis too many. The axis of the heads is put in later, by the layer.",
            PADDING,
            (lambda t, p: (t != p)[:, None, None],),
        ),
        Mistake(
            "pad_transposed",
            "Sentences and tokens are exchanged: the mask of one sentence is spread over the batch.",
            PADDING,
            (lambda t, p: (t != p).transpose(0, 1).unsqueeze(1),),
        ),
        Mistake(
            "pad_hardcoded_zero",
            "Your padding id stands in your code; the one that is given is not used.",
            PADDING,
            (
                lambda t, p: (t != 0).unsqueeze(1),
                lambda t, p: (t > 0).unsqueeze(1),
                lambda t, p: (t != 1).unsqueeze(1),
                lambda t, p: t.bool().unsqueeze(1),
            ),
        ),
        Mistake(
            "pad_assumes_the_end",
            "You count the padding and block as many keys at the end. Padding may stand in front.",
            PADDING,
            (
                lambda t, p: (torch.arange(t.size(1)) < (t != p).sum(1, keepdim=True)).unsqueeze(1),
                lambda t, p: (t != p).long().cumprod(1).bool().unsqueeze(1),
            ),
        ),
        Mistake(
            "pad_repeated",
            "You repeat the row for every query. One row is enough: an axis of size 1 stands for all queries.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1),),
        ),
    ],
)


def _both(t, p):
    return reference_padding(t, p), reference_causal(t.size(1))


decoder_mask = MaskExercise(
    "decoder_mask",
    signature="tokens pad_id",
    expects="a mask of True and False, (B, T, T); True where the key is real and not ahead of the query.",
    reference=reference_decoder,
    parts=_mask,
    read=PADDING,
    probes=_PADDING_PROBES[:5],
    mistakes=[
        Mistake(
            "dec_or_instead_of_and",
            "Your mask allows what either rule allows. A key must satisfy both.",
            PADDING,
            (lambda t, p: torch.logical_or(*_both(t, p)),),
        ),
        Mistake(
            "dec_pad_on_queries",
            "The padding blocks rows of queries. It is the padded keys that must not be seen.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(2) & reference_causal(t.size(1)),),
        ),
        Mistake(
            "dec_pad_on_both",
            "The padding blocks its rows too. A row without any key leaves its softmax nothing to share out.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(2) & reference_decoder(t, p),),
        ),
        Mistake(
            "dec_padding_only",
            "Only the padding is blocked: tokens see the future.",
            PADDING,
            (lambda t, p: (t != p).unsqueeze(1).expand(-1, t.size(1), -1), lambda t, p: (t != p).unsqueeze(1)),
        ),
        Mistake(
            "dec_causal_only",
            "Only the future is blocked: the padding is seen.",
            PADDING,
            (
                lambda t, p: reference_causal(t.size(1)).expand(t.size(0), -1, -1),
                lambda t, p: reference_causal(t.size(1)),
                lambda t, p: reference_causal(t.size(1))[0],
            ),
        ),
        Mistake(
            "dec_upper",
            "The triangle is the other one: tokens see the future and not the past.",
            CAUSAL,
            (lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).triu(), lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).triu(1)),
        ),
        Mistake(
            "dec_excludes_self",
            "The diagonal is blocked: a token may not see itself.",
            CAUSAL,
            (lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).tril(-1),),
        ),
        Mistake(
            "dec_sees_next",
            "Every token sees one place too far.",
            CAUSAL,
            (lambda t, p: (t != p).unsqueeze(1) & _ones(t.size(1)).tril(1),),
        ),
        Mistake(
            "dec_inverted",
            "True and False are exchanged, in the whole or in one of the two masks.",
            MEANING,
            (
                lambda t, p: ~reference_decoder(t, p),
                lambda t, p: (t == p).unsqueeze(1) & reference_causal(t.size(1)),
                lambda t, p: (t == p).unsqueeze(1) | _ones(t.size(1)).triu(1),
                lambda t, p: ~reference_padding(t, p) & ~reference_causal(t.size(1)),
            ),
        ),
        Mistake(
            "dec_exactly_one",
            "Your mask is True where exactly one of the rules holds.",
            PADDING,
            (lambda t, p: torch.logical_xor(*_both(t, p)),),
        ),
        Mistake(
            "dec_hardcoded_zero",
            "Your padding id stands in your code; the one that is given is not used.",
            PADDING,
            (lambda t, p: (t != 0).unsqueeze(1) & reference_causal(t.size(1)),),
        ),
        Mistake(
            "dec_greater_than",
            "You compare the ids by size. A padding id is a name, not the smallest number.",
            PADDING,
            (lambda t, p: (t > p).unsqueeze(1) & reference_causal(t.size(1)),),
        ),
        Mistake(
            "dec_extra_axis",
            "There is one axis too many. The axis of the heads is put in later, by the layer.",
            PADDING,
            (lambda t, p: reference_decoder(t, p).unsqueeze(1),),
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


def _mask_with(hide=None, normalise=softmax, **steps):
    return attention_with(normalise=normalise, **({} if hide is None else {"hide": hide}), **steps)


def _fill_with(number):
    return lambda s, m: s.masked_fill(m == 0, number)


def _only_if(s, m):
    if m:
        s = s.masked_fill(m == 0, -math.inf)
    return s


def _after_softmax(keep):
    def attention(query, key, value, mask):
        weights = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).softmax(-1)
        weights = keep(weights, mask)
        return weights @ value, weights

    return attention


def _on_output(query, key, value, mask):
    output, weights = reference_attention(query, key, value)
    return output * mask.any(-1, keepdim=True), weights


def _fills(trials) -> list[float]:
    """Work out the score that the blocked cells were given, from the weights alone."""
    found = []
    for trial in trials:
        query, key, _, mask = trial.probe.args
        weights = trial.seen.parts.get("weights")
        if weights is None or mask is None or trial.probe.gradient or trial.want.parts["weights"].shape != weights.shape:
            continue
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).double()
        blocked = (mask == 0).expand_as(scores)
        log = weights.detach().double().log()
        for row in range(log[..., 0].numel()):
            w, s, b = (x.reshape(-1, x.size(-1))[row] for x in (log, scores, blocked))
            seen = ~b & w.isfinite() & (w > -20)
            hidden = b & w.isfinite() & (w > -20)
            if seen.any() and hidden.any():
                shift = (s - w)[seen]
                if shift.max() - shift.min() > 1e-2:
                    return []
                found += (w[hidden] + shift.mean()).tolist()
    return found


def _constant_fill(low, high):
    def sign(trials):
        fills = _fills(trials)
        return bool(fills) and max(fills) - min(fills) < 0.05 and low <= sum(fills) / len(fills) <= high

    return sign


def _mask_changed(trials):
    return any("mask" in t.seen.changed for t in trials)


masked_attention = Exercise(
    "masked_attention",
    signature="query key value mask",
    expects="a pair (output, weights): output (..., T_q, d_v) and weights (..., T_q, T_k), 0 where the mask blocks.",
    reference=reference_attention,
    parts=output_and_weights,
    read=INFINITY,
    probes=[
        Probe("a causal mask", (*_SQUARE, _CAUSAL5)),
        Probe("padding in cross-attention", (normal(2, 3, 8, seed=55), normal(2, 5, 8, seed=56), normal(2, 5, 6, seed=57), _PAD_KEYS)),
        Probe("a head axis in front", (normal(2, 3, 4, 8, seed=58), normal(2, 3, 6, 8, seed=59), normal(2, 3, 6, 7, seed=60), _HEADS_MASK)),
        Probe("a mask without a batch axis", (normal(2, 3, 8, seed=61), normal(2, 4, 8, seed=62), normal(2, 4, 6, seed=63), _UNEVEN)),
        Probe("integers 0 and 1", (*_SQUARE, _CAUSAL5.long())),
        Probe("very low scores", (_LOW_QUERY, _LOW_KEY, normal(1, 5, 6, seed=64), _CAUSAL5), tolerance=1e-4),
        Probe("a mask that blocks nothing", (*_SQUARE, torch.ones(1, 5, 5, dtype=torch.bool))),
        Probe("gradients", (*_SQUARE, _CAUSAL5), gradient=True, tolerance=1e-4),
        Probe("64-bit floats", (*(x.double() for x in _SQUARE), _CAUSAL5), judged=False, tolerance=1e-12),
        Probe("an infinite score behind the mask", (_SQUARE[0], _INFINITE_KEY * 1e9, _SQUARE[2], _CAUSAL5), judged=False),
    ],
    mistakes=[
        Mistake(
            "mask_inverted",
            "You block where the mask is True. Here True means may attend.",
            MEANING,
            (
                _mask_with(lambda s, m: s.masked_fill(m != 0, -math.inf)),
                _mask_with(lambda s, m: s.masked_fill(m != 0, -1e9)),
                _mask_with(lambda s, m: s.masked_fill(m != 0, torch.finfo(s.dtype).min)),
                _mask_with(lambda s, m: s + m.to(s.dtype) * -1e9),
                lambda q, k, v, m: (
                    nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(m == 0)),
                    reference_attention(q, k, v, m == 0)[1],
                ),
                lambda q, k, v, m: reference_attention(q, k, v, m == 0),
            ),
        ),
        Mistake(
            "mask_minus_inf_times",
            "You multiply minus infinity with 0 where a cell is allowed: that is NaN, not 0.",
            INFINITY,
            (_mask_with(lambda s, m: s + (1.0 - m.to(s.dtype)) * -math.inf), _mask_with(lambda s, m: s * m.to(s.dtype) + (1.0 - m.to(s.dtype)) * -math.inf)),
        ),
        Mistake(
            "mask_fill_plus_inf",
            "Your fill is plus infinity: the blocked cells win, and the softmax gives NaN.",
            INFINITY,
            (_mask_with(_fill_with(math.inf)),),
        ),
        Mistake(
            "mask_fill_large_positive",
            "Your fill has the wrong sign: a large positive score wins every row.",
            INFINITY,
            (_mask_with(_fill_with(1e9)), _mask_with(_fill_with(torch.finfo(torch.float32).max))),
            sign=_constant_fill(1.0, math.inf),
        ),
        Mistake(
            "mask_tilde_on_int",
            "Right for True and False, wrong for integers 0 and 1: turned around by ~, 1 becomes -2 and 0 becomes -1, "
            "and both count as true.",
            MEANING,
            (_mask_with(lambda s, m: s.masked_fill((~m).bool(), -math.inf)), _mask_with(lambda s, m: s.masked_fill((~m).bool(), -1e9))),
        ),
        Mistake(
            "mask_softmax_wrong_with_minus_inf",
            "Your softmax runs down the columns. With a causal mask that still looks like a triangle, "
            "but the rows do not sum to 1.",
            INFINITY,
            (
                _mask_with(_fill_with(-1e9), normalise=lambda s: s.softmax(-2)),
                _mask_with(normalise=lambda s: s.softmax(-2)),
                _mask_with(_fill_with(torch.finfo(torch.float32).min), normalise=lambda s: s.softmax(-2)),
            ),
        ),
        Mistake(
            "mask_one_minus_bool",
            "1 - mask is not defined for True and False: PyTorch raises.",
            MEANING,
            (_mask_with(lambda s, m: s.masked_fill((1 - m).bool(), -math.inf)), _mask_with(lambda s, m: s.masked_fill((-m).bool(), -math.inf))),
        ),
        Mistake(
            "mask_result_dropped",
            "The mask changes nothing in your result: it is not used, or what masked_fill returns is thrown away.",
            INFINITY,
            (_mask_with(lambda s, m: s),),
        ),
        Mistake(
            "mask_zero_score",
            "Blocked scores are multiplied down to 0. A score of 0 still gets weight, because its exponential is 1.",
            FAIL,
            (_mask_with(lambda s, m: s * m),),
        ),
        Mistake(
            "mask_fill_minus_1e_minus_9",
            "Your fill is a tiny number near 0, not a huge negative one: look at the sign of its exponent.",
            FAIL,
            (_mask_with(_fill_with(-1e-9)),),
        ),
        Mistake(
            "mask_finfo_tiny",
            "Your fill is 0, or so close to 0 that it makes no difference (finfo.tiny is the smallest positive number). "
            "That is an ordinary score: its exponential is 1.",
            FAIL,
            (
                _mask_with(lambda s, m: s.masked_fill(m == 0, torch.finfo(s.dtype).tiny)),
                _mask_with(lambda s, m: s.masked_fill(m == 0, torch.finfo(s.dtype).eps)),
            ),
            sign=_constant_fill(-0.05, 0.05),
        ),
        Mistake(
            "mask_fill_minus_10",
            "Your fill is low, but not low enough: the blocked cells keep a little weight, and all of it "
            "once the allowed scores lie lower still.",
            FAIL,
            tuple(_mask_with(_fill_with(-float(f))) for f in (10, 1, 5, 20, 50, 100, 1000, 10000, 1e4 / 3, 9999)),
            sign=_constant_fill(-1e5, -0.05),
        ),
        Mistake(
            "mask_additive_0_1",
            "You add the 0 and 1 of the mask to the scores. That favours the allowed cells a little; it blocks nothing.",
            FAIL,
            (_mask_with(lambda s, m: s + m), _mask_with(lambda s, m: s - (m == 0).to(s.dtype))),
        ),
        Mistake(
            "mask_min_of_scores",
            "Your fill is the lowest score there is: blocked cells tie with the least liked key.",
            FAIL,
            (
                _mask_with(lambda s, m: torch.where(m == 0, s.min(), s)),
                _mask_with(lambda s, m: torch.where(m == 0, s.amin(-1, keepdim=True), s)),
            ),
        ),
        Mistake(
            "mask_square_slice",
            "You cut the mask to as many keys as there are queries. That fits while both are equally many.",
            PADDING,
            (
                _mask_with(lambda s, m: s.masked_fill(m[..., : s.size(-2), : s.size(-2)] == 0, -math.inf)),
                _mask_with(lambda s, m: s.masked_fill(m[:, : s.size(-2), : s.size(-2)] == 0, -math.inf)),
            ),
        ),
        Mistake(
            "mask_truth_value",
            "You ask whether the mask is true. A whole tensor has no single truth value; ask whether there is a mask.",
            INFINITY,
            (_mask_with(_only_if),),
        ),
        Mistake(
            "mask_after_softmax",
            "You mask after the softmax: the blocked weight is gone and nobody gets it, so the rows no longer sum to 1.",
            FAIL,
            (
                _after_softmax(lambda w, m: w * m),
                _after_softmax(lambda w, m: w.masked_fill(m == 0, -math.inf)),
                _after_softmax(lambda w, m: w.masked_fill(m == 0, -1e9)),
            ),
        ),
        Mistake(
            "mask_transposed",
            "Your mask is turned over: what query i may see has become what key i may be seen by.",
            CAUSAL,
            (
                _mask_with(lambda s, m: s.masked_fill(m.transpose(-2, -1) == 0, -math.inf)),
                _mask_with(lambda s, m: s.masked_fill(m.transpose(-2, -1) == 0, -1e9)),
            ),
        ),
        Mistake(
            "mask_always_causal",
            "You block the future whatever the mask says.",
            CAUSAL,
            (
                lambda q, k, v, m: reference_attention(q, k, v, torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()),
                lambda q, k, v, m: reference_attention(q, k, v, torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril() & (m != 0)),
            ),
        ),
        Mistake(
            "mask_on_output",
            "The mask meets the output or the values. It belongs on the scores, between queries and keys.",
            INFINITY,
            (_on_output,),
        ),
        Mistake(
            "mask_changed",
            "Your code writes into the caller's mask: the next call gets another one.",
            INFINITY,
            sign=_mask_changed,
        ),
        *SCALING_MISTAKES,
        *(m for m in ATTENTION_MISTAKES if m.read != STABLE),  # no scores here that could overflow
    ],
)


def _torch_layer(dropout=0.0):
    layer = seeded(lambda: nn.MultiheadAttention(12, 4, dropout=dropout, batch_first=True), 3)
    with torch.no_grad():
        layer.in_proj_bias.copy_(normal(36, seed=71))
        layer.out_proj.bias.copy_(normal(12, seed=72))
    return layer


def _layer(dropout=0.0):
    words = "nn.MultiheadAttention(12, 4, batch_first=True" + (f", dropout={dropout})" if dropout else ")")
    return Fresh(functools.partial(_torch_layer, dropout), words)


def _call_with(blocked, train=False, average=False, **options):
    """Return a call of the layer whose attn_mask is blocked(allowed (B, T_q, T_k), heads)."""

    def call(layer, query, key, value, mask):
        layer.train(train)
        attn_mask = None
        if mask is not None:
            attn_mask = blocked(mask.bool().expand(query.size(0), query.size(1), key.size(1)), layer.num_heads)
        given = {"attn_mask": attn_mask, "need_weights": True, "average_attn_weights": average} | options
        return layer(query, key, value, **given)

    return call


def _per_head(m, h):
    return (~m).repeat_interleave(h, 0)


def _reference_call(layer, query, key, value, mask):
    layer.eval()
    attn_mask = None if mask is None else to_torch_mask(mask, query, key, layer.num_heads)
    return layer(query, key, value, attn_mask=attn_mask, average_attn_weights=False)


def _call_inputs(batch, query_len, key_len, self_attention=False):
    query = normal(batch, query_len, 12, seed=73)
    if self_attention:
        return query, query, query
    return query, normal(batch, key_len, 12, seed=74), normal(batch, key_len, 12, seed=75)


def _only_dropout_disagrees(trials):
    wrong = [t for t in trials if t.probe.judged and not t.agrees]
    return bool(wrong) and all("dropout" in str(t.probe.args[0]) for t in wrong)


call_torch = Exercise(
    "call_torch",
    signature="torch_mha query key value mask",
    expects="a pair (output, weights): output (B, T_q, d_model) and weights (B, h, T_q, T_k), one table for each head.",
    reference=_reference_call,
    parts=output_and_weights,
    read=MEANING,
    probes=[
        Probe("no mask", (_layer(), *_call_inputs(3, 4, 6), None)),
        Probe("a padding mask", (_layer(), *_call_inputs(3, 4, 6), padding(3, 6))),
        Probe("a causal mask", (_layer(), *_call_inputs(3, 5, 5, True), _CAUSAL5)),
        Probe("as many sentences as heads", (_layer(), *_call_inputs(4, 4, 6), padding(4, 6))),
        Probe("a layer with dropout", (_layer(0.5), *_call_inputs(3, 4, 6), padding(3, 6))),
        Probe("a mask that blocks nothing", (_layer(), *_call_inputs(3, 4, 6), torch.ones(3, 1, 6, dtype=torch.bool))),
    ],
    mistakes=[
        Mistake(
            "par_mask_not_inverted",
            "The mask goes in as it is. In this layer True means blocked, the opposite of the course.",
            MEANING,
            (_call_with(lambda m, h: m.repeat_interleave(h, 0)),),
        ),
        Mistake(
            "par_float_mask_added",
            "Your mask arrives as the numbers 0 and 1. The layer adds numbers to the scores: nothing is blocked.",
            MEANING,
            (
                _call_with(lambda m, h: (~m).float().repeat_interleave(h, 0)),
                _call_with(lambda m, h: m.float().repeat_interleave(h, 0)),
            ),
        ),
        Mistake(
            "par_mask_batch_only",
            "Your mask has one table for each sentence. The layer wants one for each sentence and head.",
            MEANING,
            (_call_with(lambda m, h: ~m), _call_with(lambda m, h: m), _call_with(lambda m, h: (~m).unsqueeze(1))),
        ),
        Mistake(
            "par_mask_repeat_order",
            "The copies stand in the wrong order: all sentences for head 0, then for head 1. "
            "The layer wants all heads of sentence 0 first.",
            MEANING,
            (_call_with(lambda m, h: (~m).repeat(h, 1, 1)),),
        ),
        Mistake(
            "par_train_mode",
            "The layer is in training mode: its dropout is at work, and the same call gives other numbers each time.",
            MEANING,
            (_call_with(_per_head, train=True),),
            sign=_only_dropout_disagrees,
        ),
        Mistake(
            "par_weights_averaged",
            "Your weights are the mean over the heads. Asked for is one table for each head.",
            MEANING,
            (_call_with(_per_head, average=True),),
        ),
        Mistake(
            "par_no_weights",
            "The layer was told not to return its weights.",
            MEANING,
            (_call_with(_per_head, need_weights=False),),
        ),
        Mistake(
            "par_mask_ignored",
            "The mask changes nothing: it does not reach the layer.",
            MEANING,
            (_call_with(lambda m, h: None),),
        ),
        Mistake(
            "par_first_sentence_only",
            "The mask of the first sentence is used for all.",
            MEANING,
            (_call_with(lambda m, h: ~m[0]),),
        ),
        Mistake(
            "par_is_causal",
            "The layer blocks the future whatever your mask says.",
            MEANING,
            (_call_with(lambda m, h: torch.ones(m.shape[1:], dtype=torch.bool).triu(1)),),
        ),
        Mistake(
            "par_inputs_mixed_up",
            "Query, key and value do not arrive in their places.",
            MEANING,
            (
                lambda l, q, k, v, m: _reference_call(l, q, v, k, m),
                lambda l, q, k, v, m: _reference_call(l, q, k, k, m),
                lambda l, q, k, v, m: _reference_call(l, q, v, v, m),
            ),
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
    read=FAIL,
    lucky=(
        Lucky(
            "hidden_by_open_mask",
            "Your mask blocks nothing, so the fill never appears.",
            lambda query, key, value, mask: bool(mask.all()),
        ),
        Lucky(
            "hidden_by_empty_row",
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
