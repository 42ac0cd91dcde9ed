"""The checks of chapter 5."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import head_variants as hv
from mha_lib.checks import layer_laws, planted
from mha_lib.checks.bug_hunt import BugHunt, Lucky
from mha_lib.checks.engine import Exercise, Fresh, Mistake, Probe, first_of, one_tensor
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.modules import ModuleExercise
from mha_lib.checks.variants import attention_with
from mha_lib.heads import merge_heads
from mha_lib.masks import causal_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.experiments.training import seeded

SUM = "notebook 05, “A sum over heads”"
MIX = "notebook 05, “W_O mixes”"
DROP = "notebook 05, “Dropout on the weights”"
LAYER = "notebook 05, “The whole layer”"
CLONES = "notebook 05, “Four linears, cloned”"
TORCH = "notebook 05, “The same as PyTorch's”"
CUT = "notebook 04, “Cut the features, not the sentence”"
BACK = "notebook 04, “Back again”"
HEADS = "notebook 04, “A loop over heads, or one product”"
MASK = "notebook 04, “The mask needs the head axis”"
CAUSAL = "notebook 03, “The causal mask”"
TRUE = "notebook 03, “What does True mean?”"


def _sum(heads, weight):
    return merge_heads(heads) @ weight.transpose(0, 1)


def _terms(heads, blocks):
    return sum(heads[:, i] @ block for i, block in enumerate(blocks))


sum_over_heads = Exercise(
    "sum_over_heads",
    signature="heads weight",
    expects="one tensor (B, T, d_out): every head through its own block of the weight, added up.",
    reference=_sum,
    parts=one_tensor("output"),
    read=SUM,
    probes=[
        Probe("4 heads of 3 features to 7", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92))),
        Probe("a square weight", (normal(2, 4, 5, 3, seed=93), normal(12, 12, seed=94))),
        Probe("as many tokens as heads", (normal(2, 4, 4, 3, seed=95), normal(12, 12, seed=96))),
        Probe("one head", (normal(2, 1, 5, 6, seed=97), normal(4, 6, seed=98))),
        Probe("gradients", (normal(2, 4, 5, 3, seed=91), normal(7, 12, seed=92)), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "sum_weight_not_transposed",
            "nn.Linear stores its weight as (out, in). You multiply with it as if it were (in, out).",
            SUM,
            (
                lambda h, w: merge_heads(h) @ w,
                lambda h, w: _terms(h, w.split(h.size(-1), 0)),
                lambda h, w: _terms(h, w.split(h.size(-1), 1)),
            ),
        ),
        Mistake(
            "sum_wrong_blocks",
            "You cut the weight along the outputs. The block of a head is cut along the inputs.",
            SUM,
            (lambda h, w: _terms(h, [b.T for b in w.split(h.size(-1), 0)]),),
        ),
        Mistake(
            "sum_first_block_for_all",
            "All heads go through the same block.",
            SUM,
            (lambda h, w: _terms(h, [w.T[: h.size(-1)]] * h.size(1)), lambda h, w: h.sum(1) @ w.T[: h.size(-1)]),
        ),
        Mistake("sum_mean", "You average over the heads. Their terms add up.", SUM, (lambda h, w: _sum(h, w) / h.size(1),)),
        Mistake(
            "sum_without_moving_axis",
            "You join the heads without moving their axis back.",
            BACK,
            (lambda h, w: hv.view_merge(h) @ w.T,),
        ),
        Mistake(
            "sum_interleaved",
            "A head gets every h-th column of the weight. Its columns are neighbours.",
            SUM,
            (lambda h, w: hv.interleaved_merge(h) @ w.T,),
        ),
        Mistake(
            "sum_reversed",
            "The heads meet the blocks in another order.",
            SUM,
            (lambda h, w: _sum(h.flip(1), w),),
        ),
        Mistake(
            "sum_without_weight",
            "The weight takes no part, or only in one head.",
            SUM,
            (lambda h, w: h.sum(1), lambda h, w: merge_heads(h), lambda h, w: h[:, 0] @ w.T[: h.size(-1)]),
        ),
        Mistake(
            "sum_last_missing",
            "One head is missing from your sum.",
            SUM,
            (
                lambda h, w: _terms(h[:, :-1], w.T.split(h.size(-1))[:-1]),
                lambda h, w: _terms(h[:, 1:], w.T.split(h.size(-1))[1:]),
            ),
        ),
        Mistake(
            "sum_not_summed",
            "The terms stand side by side, on an axis of their own. They must be added up.",
            SUM,
            (
                lambda h, w: torch.stack([h[:, i] @ b for i, b in enumerate(w.T.split(h.size(-1)))], 1),
                lambda h, w: torch.cat([h[:, i] @ b for i, b in enumerate(w.T.split(h.size(-1)))], -1),
            ),
        ),
    ],
)


class Spy(nn.Module):
    """A dropout without chance: the same cells vanish every time, and it remembers what it was given."""

    p = 0.5

    def __init__(self):
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        pattern = (torch.arange(x.numel(), device=x.device).reshape(x.shape) % 3 != 0).to(x.dtype)
        return x * pattern * 1.5


def _spy():
    return Fresh(Spy, "a dropout that always takes the same cells")


_INPUTS = (normal(2, 4, 8, seed=101), normal(2, 5, 8, seed=102), normal(2, 5, 6, seed=103))

dropout = Exercise(
    "dropout",
    signature="query key value dropout",
    expects="a pair (output, weights): the output mixed with the weights that went through dropout.",
    reference=attention_with(),
    parts=first_of("output"),
    read=DROP,
    apply=lambda function, query, key, value, module: function(query, key, value, dropout=module),
    probes=[
        Probe("a dropout at work", (*_INPUTS, _spy())),
        Probe("no dropout", (*_INPUTS, None)),
        Probe("a head axis in front", (normal(2, 3, 4, 8, seed=104), normal(2, 3, 5, 8, seed=105), normal(2, 3, 5, 7, seed=106), _spy())),
        Probe("dropout in eval mode", (*_INPUTS, Fresh(lambda: nn.Dropout(0.5).eval(), "nn.Dropout(0.5) in eval mode"))),
    ],
    mistakes=[
        Mistake(
            "dropout_not_applied",
            "The dropout is given, but takes no part.",
            DROP,
            (attention_with(drop=lambda w, d: w),),
        ),
        Mistake(
            "dropout_on_scores",
            "Your dropout acts before the softmax. A score of 0 is not a weight of 0.",
            DROP,
            (
                lambda q, k, v, mask=None, dropout=None: (
                    (dropout or (lambda x: x))(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v,
                    None,
                ),
                lambda q, k, v, mask=None, dropout=None: (
                    ((dropout or (lambda x: x))(q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))).softmax(-1) @ v,
                    None,
                ),
            ),
        ),
        Mistake(
            "dropout_on_output",
            "Your dropout acts on the output. Here it acts on the weights, between softmax and mixture.",
            DROP,
            (lambda q, k, v, mask=None, dropout=None: ((dropout or (lambda x: x))(reference_attention(q, k, v)[0]), None),),
        ),
        Mistake(
            "dropout_on_values",
            "Your dropout acts on the values. Here it acts on the weights.",
            DROP,
            (lambda q, k, v, mask=None, dropout=None: reference_attention(q, k, (dropout or (lambda x: x))(v)),),
        ),
        Mistake(
            "dropout_on_inputs",
            "Your dropout acts on the queries or keys. Here it acts on the weights.",
            DROP,
            (
                lambda q, k, v, mask=None, dropout=None: reference_attention((dropout or (lambda x: x))(q), k, v),
                lambda q, k, v, mask=None, dropout=None: reference_attention(q, (dropout or (lambda x: x))(k), v),
            ),
        ),
        Mistake(
            "dropout_twice",
            "Your dropout is applied twice.",
            DROP,
            (attention_with(drop=lambda w, d: w if d is None else d(d(w))),),
        ),
        Mistake(
            "dropout_renormalised",
            "After the dropout you make the rows sum to 1 again. Dropout has already enlarged what it left.",
            DROP,
            (
                attention_with(drop=lambda w, d: w if d is None else (x := d(w)) / x.sum(-1, keepdim=True)),
                attention_with(drop=lambda w, d: w if d is None else d(w).softmax(-1)),
            ),
        ),
        Mistake(
            "dropout_required",
            "Without a dropout your function raises. None means: drop nothing.",
            DROP,
            (attention_with(drop=lambda w, d: d(w)),),
        ),
        Mistake(
            "dropout_of_its_own",
            "You drop with a dropout of your own. The one that is given knows its rate and whether training is on.",
            DROP,
            (
                attention_with(drop=lambda w, d: w if d is None else F.dropout(w, d.p)),
                attention_with(drop=lambda w, d: w if d is None else nn.Dropout(d.p)(w)),
                attention_with(drop=lambda w, d: w if d is None else F.dropout(w, d.p, d.training)),
            ),
        ),
        Mistake(
            "dropout_by_hand_without_rescale",
            "What is left is not enlarged as the dropout does it.",
            DROP,
            (attention_with(drop=lambda w, d: w if d is None else w * (d(w) != 0)),),
        ),
    ],
)


def _linear(weights, role, x):
    return F.linear(x, *weights[role])


def layer_with(
    *,
    through=("w_q", "w_k", "w_v"),
    feed=lambda q, k, v: (q, k, v),
    after=lambda output, query: output,
    output=lambda weights, merged: _linear(weights, "w_o", merged),
    **steps,
):
    """Return a mimic of the layer: other linears, other inputs, other steps between."""
    attend = hv.heads_with(**steps)

    def layer(weights_of, d_model, num_heads, query, key, value, mask=None):
        weights = weights_of(d_model, num_heads)
        projected = [
            x if role is None else _linear(weights, role, x) for role, x in zip(through, feed(query, key, value))
        ]
        merged, _ = attend(*projected, num_heads, mask)
        return after(output(weights, merged), query)

    return layer


def _sdpa(mask_of):
    """Return a mimic that attends with PyTorch's function, given the mask mask_of(mask) or flags."""

    def layer(weights_of, d_model, num_heads, query, key, value, mask=None):
        weights = weights_of(d_model, num_heads)
        q, k, v = (
            hv.split_heads(_linear(weights, role, x), num_heads)
            for role, x in (("w_q", query), ("w_k", key), ("w_v", value))
        )
        options = {} if mask is None else mask_of(mask.unsqueeze(1) if mask.dim() == 3 else mask)
        return _linear(weights, "w_o", merge_heads(F.scaled_dot_product_attention(q, k, v, **options)))

    return layer


def _causal_always(scores, mask=None):
    scores = scores.masked_fill(~hv.causal_anyway(*scores.shape[-2:]), -math.inf)
    return scores if mask is None else hv.hide(scores, mask)


def _averaged(x):
    return x.mean(1).repeat(1, 1, x.size(1))


_Q, _K, _V = normal(3, 4, 12, seed=111), normal(3, 6, 12, seed=112), normal(3, 6, 12, seed=113)
_X, _X_HEADS = normal(3, 5, 12, seed=114), normal(4, 5, 12, seed=115)
_ONE, _WIDE = normal(1, 5, 12, seed=116), normal(3, 5, 16, seed=117)
_CAUSAL = causal_mask(5)

multi_head_attention = ModuleExercise(
    "multi_head_attention",
    signature="d_model num_heads query key value mask",
    build_with="d_model num_heads",
    roles={role: ("d_model", "d_model") for role in ("w_q", "w_k", "w_v", "w_o")},
    expects="a class MultiHeadAttention(d_model, num_heads, dropout=0.0) whose call "
    "(query, key, value, mask=None) gives the output (B, T_q, d_model).",
    reference=layer_with(),
    parts=first_of("output"),
    read=LAYER,
    structure=layer_laws.structure,
    properties=layer_laws.PROPERTIES,
    # Whatever the weights of attention are, they sum to 1: only w_v and w_o matter here.
    narrow=Probe("the same value everywhere", (12, 4, _Q, _K, _V[:, :1].expand_as(_V), None)),
    rules=layer_laws.RULES,
    probes=[
        Probe("self-attention", (12, 4, _X, _X, _X, None)),
        Probe("cross-attention", (12, 4, _Q, _K, _V, None)),
        Probe("a causal mask", (12, 4, _X, _X, _X, _CAUSAL)),
        Probe("a padding mask", (12, 4, _Q, _K, _V, padding(3, 6))),
        Probe("as many sentences as heads", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5))),
        Probe("padding and causal", (12, 4, _X, _X, _X, padding(3, 5) & _CAUSAL)),
        Probe("a mask that blocks nothing", (12, 4, _X, _X, _X, torch.ones(1, 5, 5, dtype=torch.bool))),
        Probe("one sentence", (12, 4, _ONE, _ONE, _ONE, None)),
        Probe("another number of heads", (12, 2, _Q, _K, _V, None)),
        Probe("as many features in a head as heads", (16, 4, _WIDE, _WIDE, _WIDE, None)),
        Probe("gradients", (12, 4, _Q, _K, _V, None), gradient=True, tolerance=1e-4),
        Probe("a mask with a head axis", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5).unsqueeze(1)), judged=False),
        Probe("one head", (12, 1, _Q, _K, _V, None), judged=False),
    ],
    mistakes=[
        Mistake(
            "mha_split_view_directly",
            "Your heads cut the sentence instead of the features: going straight to (B, h, T, d_k) keeps the order of "
            "memory, and tokens get mixed.",
            CUT,
            (layer_with(split=hv.view_split),),
        ),
        Mistake(
            "mha_split_and_merge_view",
            "Split and merge both go straight through memory. They undo each other, so it looks consistent, "
            "but the heads attended to pieces of the sentence.",
            CUT,
            (layer_with(split=hv.view_split, merge=hv.view_merge),),
        ),
        Mistake(
            "mha_merge_view",
            "You join the heads without moving their axis back.",
            BACK,
            (layer_with(merge=hv.view_merge),),
        ),
        Mistake(
            "mha_interleaved_both_ways",
            "Your heads take every h-th feature, going in and coming out. That is consistent, but not the layout "
            "everyone else uses: weights cannot be exchanged.",
            CUT,
            (
                layer_with(split=hv.interleaved_split, merge=hv.interleaved_merge),
                layer_with(split=hv.interleaved_split),
                layer_with(merge=hv.interleaved_merge),
            ),
        ),
        Mistake(
            "mha_scale_missing",
            "The scores are not divided by the root of the width of a head.",
            LAYER,
            (layer_with(scores=hv.scaled_by(lambda d, h, t: 1.0)),),
        ),
        Mistake(
            "mha_scale_num_heads",
            "You divide by the root of the number of heads. It is the width of a head that counts.",
            LAYER,
            (layer_with(scores=hv.scaled_by(lambda d, h, t: h**-0.5)),),
        ),
        Mistake(
            "mha_scale_d_model",
            "You divide by the root of d_model. The sum that makes a score runs over the d_k features of one head.",
            LAYER,
            (layer_with(scores=hv.scaled_by(lambda d, h, t: (d * h) ** -0.5)),),
        ),
        Mistake(
            "mha_scale_other",
            "The scale is not one over the root of the width of a head.",
            LAYER,
            (
                layer_with(scores=hv.scaled_by(lambda d, h, t: 1 / d)),
                layer_with(scores=hv.scaled_by(lambda d, h, t: d**0.5)),
                layer_with(scores=hv.scaled_by(lambda d, h, t: t**-0.5)),
                layer_with(scores=hv.scaled_by(lambda d, h, t: 1 / 8)),
                layer_with(scores=hv.scaled_by(lambda d, h, t: d**-0.25)),
                layer_with(scores=hv.scaled_by(lambda d, h, t: 1 / (d * h))),
            ),
        ),
        Mistake(
            "mha_first_head_only",
            "Every head uses the features of head 0; the other slices are never looked at.",
            CUT,
            (layer_with(inputs=lambda q, k, v: tuple(t[:, :1].expand(-1, t.size(1), -1, -1) for t in (q, k, v))),),
        ),
        Mistake(
            "mha_single_head",
            "The features are never split: one softmax attends with all of them.",
            CUT,
            (
                layer_with(split=lambda x, h: x.unsqueeze(1), merge=lambda x: x.squeeze(1)),
            ),
        ),
        Mistake(
            "mha_scores_sum_heads",
            "The scores are added up over the heads, or never split: all heads attend alike.",
            HEADS,
            (
                layer_with(scores=lambda q, k, h: hv.scaled(q, k, h).sum(1, keepdim=True)),
                layer_with(scores=lambda q, k, h: hv.scaled(q, k, h).mean(1, keepdim=True)),
            ),
        ),
        Mistake(
            "mha_softmax_over_heads",
            "Your softmax runs over the heads: they share out one weight among them.",
            HEADS,
            (layer_with(normalise=lambda s: s.softmax(1)),),
        ),
        Mistake(
            "mha_softmax_over_queries",
            "Your softmax runs over the queries, down the columns.",
            HEADS,
            (
                layer_with(normalise=lambda s: s.softmax(2)),
                layer_with(normalise=lambda s: s.softmax(2), block=lambda s, m: hv.hide(s, m).clamp_min(-1e9)),
            ),
        ),
        Mistake(
            "mha_heads_averaged",
            "The heads are averaged or added up, and the result repeated. They belong side by side.",
            BACK,
            (layer_with(merge=_averaged), layer_with(merge=lambda x: x.sum(1).repeat(1, 1, x.size(1)))),
        ),
        Mistake(
            "mha_mask_result_dropped",
            "The mask changes nothing: it is not used, or what masked_fill returns is thrown away.",
            MASK,
            (layer_with(block=lambda s, m: s),),
        ),
        Mistake(
            "mha_mask_without_head_axis",
            "The mask meets the scores without a head axis, or with one in front of the batch: its sentences line up with the heads. "
            "With as many sentences as heads nothing complains.",
            MASK,
            (layer_with(block=hv.as_it_is),),
        ),
        Mistake(
            "mha_mask_unsqueeze_0",
            "The axis you put into the mask stands in front, where it changes nothing: its sentences still meet the heads.",
            MASK,
            (layer_with(block=lambda s, m: hv.as_it_is(s, m.unsqueeze(0))),),
        ),
        Mistake(
            "mha_mask_repeat_folded",
            "The heads are folded into the batch, and the copies of the mask stand in another order than they do.",
            MASK,
            (layer_with(block=hv.repeated),),
        ),
        Mistake(
            "mha_mask_unsqueeze_3",
            "The mask blocks rows of queries instead of columns of keys: its axes are exchanged.",
            MASK,
            (
                layer_with(block=lambda s, m: hv.hide(s, m.transpose(1, 2) if m.dim() == 3 else m)),
                layer_with(block=lambda s, m: hv.hide(s, m.transpose(-2, -1))),
                layer_with(block=lambda s, m: s.masked_fill(m.transpose(1, 2).unsqueeze(1) == 0, -1e9)),
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1).unsqueeze(3) == 0, -1e9)),
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(-1) == 0, -1e9)),
            ),
        ),
        Mistake(
            "mha_mask_inverted_for_sdpa",
            "You block where the mask is True. Here, and in scaled_dot_product_attention, True means may attend.",
            TRUE,
            (
                _sdpa(lambda m: {"attn_mask": m == 0}),
                layer_with(block=lambda s, m: hv.hide(s, m == 0)),
                layer_with(block=lambda s, m: hv.hide(s, m == 0).clamp_min(-1e9)),
            ),
        ),
        Mistake(
            "mha_mask_weak",
            "The blocked cells keep some weight: the fill is not low enough, or the mask is only added or multiplied.",
            MASK,
            (
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1) == 0, 0.0)),
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1) == 0, -10.0)),
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1) == 0, 1e-9)),
                layer_with(block=lambda s, m: s.masked_fill(m.unsqueeze(1) == 0, -1.0)),
                layer_with(block=lambda s, m: s + m.unsqueeze(1)),
                layer_with(block=lambda s, m: s * m.unsqueeze(1)),
                _sdpa(lambda m: {"attn_mask": m.float()}),
            ),
        ),
        Mistake(
            "mha_is_causal_instead_of_mask",
            "Whenever there is a mask you block the future, whatever the mask says.",
            CAUSAL,
            (_sdpa(lambda m: {"is_causal": True}), layer_with(block=lambda s, m: _causal_always(s))),
        ),
        Mistake(
            "mha_always_causal",
            "You block the future even where no mask is given.",
            CAUSAL,
            (
                layer_with(scores=lambda q, k, h: _causal_always(hv.scaled(q, k, h))),
                layer_with(scores=lambda q, k, h: _causal_always(hv.scaled(q, k, h)), block=lambda s, m: s),
            ),
        ),
        Mistake(
            "mha_key_projection_for_all",
            "All three inputs go through the same linear.",
            LAYER,
            tuple(layer_with(through=(role,) * 3) for role in ("w_k", "w_q", "w_v")),
        ),
        Mistake(
            "mha_value_through_w_k",
            "One of the three inputs goes through the linear of another: a linear is used twice, and one never.",
            LAYER,
            tuple(
                layer_with(through=roles)
                for roles in (
                    ("w_q", "w_k", "w_k"),
                    ("w_q", "w_k", "w_q"),
                    ("w_q", "w_q", "w_v"),
                    ("w_k", "w_k", "w_v"),
                    ("w_v", "w_k", "w_v"),
                    ("w_q", "w_v", "w_v"),
                )
            ),
        ),
        Mistake(
            "mha_projections_swapped",
            "Each linear is used once, but not for what its name says.",
            LAYER,
            tuple(
                layer_with(through=roles)
                for roles in (("w_k", "w_q", "w_v"), ("w_q", "w_v", "w_k"), ("w_v", "w_k", "w_q"), ("w_k", "w_v", "w_q"), ("w_v", "w_q", "w_k"))
            ),
        ),
        Mistake(
            "mha_value_is_key_input",
            "The value projection is fed with the key. As long as key and value are the same tensor, nobody sees it.",
            LAYER,
            (layer_with(feed=lambda q, k, v: (q, k, k)),),
        ),
        Mistake(
            "mha_wrong_input",
            "A projection is fed with the wrong input. In self-attention, where all three are the same, nobody sees it.",
            LAYER,
            (
                layer_with(feed=lambda q, k, v: (q, q, q)),
                layer_with(feed=lambda q, k, v: (k, k, k)),
                layer_with(feed=lambda q, k, v: (q, q, v)),
                layer_with(feed=lambda q, k, v: (q, v, v)),
                layer_with(feed=lambda q, k, v: (q, v, k)),
                layer_with(feed=lambda q, k, v: (k, q, v)),
            ),
        ),
        Mistake(
            "mha_no_projections",
            "The heads are slices of the raw inputs: there are no linears for query, key and value, or they are not used.",
            LAYER,
            (
                layer_with(through=(None, None, None)),
                layer_with(through=("w_q", "w_k", None)),
                layer_with(through=(None, "w_k", "w_v")),
                layer_with(through=("w_q", None, "w_v")),
            ),
        ),
        Mistake(
            "mha_no_output_projection",
            "There is no W_O at the end, or it is not used: every head stays in its own corner.",
            MIX,
            (layer_with(output=lambda w, merged: merged),),
        ),
        Mistake(
            "mha_output_projection_twice",
            "W_O is applied twice.",
            MIX,
            (layer_with(output=lambda w, merged: _linear(w, "w_o", _linear(w, "w_o", merged))),),
        ),
        Mistake(
            "mha_residual_inside",
            "You add the query to the result. That belongs to the block around this layer.",
            LAYER,
            (layer_with(after=lambda output, query: output + query),),
        ),
        Mistake(
            "mha_residual_and_norm_inside",
            "There is a LayerNorm inside. Residual and norm belong to the block around this layer.",
            LAYER,
            (
                layer_with(after=lambda output, query: F.layer_norm(output + query, output.shape[-1:])),
                layer_with(after=lambda output, query: F.layer_norm(output, output.shape[-1:])),
            ),
        ),
        Mistake(
            "mha_activation_inside",
            "There is an activation between the linears. This layer has none but the softmax.",
            LAYER,
            (
                layer_with(after=lambda output, query: output.relu()),
                layer_with(after=lambda output, query: F.gelu(output)),
                layer_with(merge=lambda x: merge_heads(x).relu()),
                layer_with(split=lambda x, h: hv.split_heads(x.relu(), h)),
            ),
        ),
        Mistake(
            "mha_full_width_heads",
            "Every head is as wide as the whole layer. The heads share d_model: each gets d_model // num_heads of it.",
            CUT,
        ),
        Mistake(
            "mha_split_then_small_linear",
            "You split first and send every head through one small linear. The linears see all features; the split comes after.",
            LAYER,
        ),
        Mistake(
            "mha_one_head_for_k_and_v",
            "Keys and values have a single head, shared by all heads of the queries. That is another layer, multi-query attention.",
            LAYER,
        ),
        Mistake(
            "mha_no_parameters",
            "Your module registers no parameters: linears in a plain list or made in forward are invisible to an optimiser.",
            CLONES,
        ),
        Mistake(
            "mha_shared_linear",
            "Your linears are one and the same object: they share their weights.",
            CLONES,
        ),
        Mistake(
            "mha_parameter_count",
            "The number of parameters is not that of four linears from d_model to d_model.",
            LAYER,
        ),
        Mistake(
            "mha_rebinds_query_in_loop",
            "Inside the loop over heads you overwrite the input with its projection: the next head projects a projection.",
            HEADS,
        ),
        Mistake(
            "mha_batch_size_stored",
            "Your layer knows one batch size only. Read it from the input, every time.",
            LAYER,
        ),
        Mistake(
            "mha_fixed_context_buffer",
            "Your layer knows one length of sentence only: something of a fixed size meets the scores.",
            LAYER,
        ),
        Mistake(
            "mha_dropout_never",
            "Your dropout is never applied: two passes in training mode give the same.",
            DROP,
        ),
        Mistake(
            "mha_dropout_zeroed_forever",
            "After eval() and train() your dropout stays off: something switched it off for good.",
            DROP,
        ),
        Mistake(
            "mha_dropout_functional_always_on",
            "In eval mode your dropout is still on: the function is not told whether training is on.",
            DROP,
        ),
        Mistake(
            "mha_dropout_created_in_forward",
            "In eval mode your dropout is still on: a module made inside forward is always in training mode.",
            DROP,
        ),
        Mistake(
            "mha_sdpa_dropout_in_eval",
            "In eval mode your dropout is still on: scaled_dot_product_attention drops whenever it gets a rate.",
            DROP,
        ),
        Mistake(
            "mha_indivisible_accepted",
            "Ten features and four heads do not come out even, and your class says nothing.",
            LAYER,
        ),
        Mistake("mha_no_gradient", "A parameter gets no gradient: the way back is cut, or it takes no part.", LAYER),
        Mistake("mha_sentences_mixed", "The output of one sentence depends on the others in the batch.", CUT),
        Mistake("mha_order_of_queries", "Reordering the queries does not reorder the outputs in the same way.", CUT),
        Mistake("mha_order_of_keys", "Reordering keys and values together changes the output.", CUT),
        Mistake("mha_leaks_future", "With a causal mask a later token still moves an earlier output.", CAUSAL),
        Mistake("mha_blind_to_past", "With a causal mask a later token does not see the first one.", CAUSAL),
        Mistake("mha_sees_padding", "What stands in blocked places moves the output.", MASK),
        Mistake("mha_open_mask_changes", "A mask that blocks nothing changes the output.", MASK),
        Mistake("mha_not_an_average", "With equal values the output still depends on query or mask: the weights do not average.", HEADS),
        Mistake("mha_not_linear_in_values", "The output is not a linear function of the values.", LAYER),
        Mistake("mha_input_unused", "Query, key or value has no effect on the output.", LAYER),
        Mistake("mha_nan", "The output holds NaN.", MASK),
    ],
)


def _torch_layer(zero_bias=False):
    layer = seeded(lambda: nn.MultiheadAttention(12, 4, batch_first=True), 5)
    with torch.no_grad():
        if not zero_bias:
            layer.in_proj_bias.copy_(normal(36, seed=121))
            layer.out_proj.bias.copy_(normal(12, seed=122))
    return layer.eval()


def _own_layer():
    return seeded(lambda: MultiHeadAttention(12, 4), 6)


def _load_and_run(function, mine, torch_mha, query, key, value):
    function(mine, torch_mha)
    return mine.eval()(query, key, value)


def _loads(order="qkv", *, cut=None, out="wb", bias=True, weight=True, transpose=False):
    """Return a transfer: the order in which in_proj is read, how it is cut, what of out_proj is copied."""

    def cuts(stacked):
        return stacked.chunk(3) if cut is None else cut(stacked)

    def load(mine, torch_mha):
        weights = dict(zip(order, cuts(torch_mha.in_proj_weight.detach())))
        biases = dict(zip(order, cuts(torch_mha.in_proj_bias.detach())))
        turn = (lambda w: w.T) if transpose else (lambda w: w)
        with torch.no_grad():
            for role in "qkv":
                linear = getattr(mine, f"w_{role}")
                if weight:
                    linear.weight.copy_(turn(weights[role]))
                linear.bias.copy_(biases[role]) if bias else linear.bias.zero_()
            if "w" in out:
                mine.w_o.weight.copy_(turn(torch_mha.out_proj.weight))
            if "b" in out:
                mine.w_o.bias.copy_(torch_mha.out_proj.bias)
            elif "0" in out:
                mine.w_o.bias.zero_()

    return load


def _biases_left(roles):
    """Return a transfer that leaves the biases of some linears as they were."""

    def load(mine, torch_mha):
        kept = {role: getattr(mine, f"w_{role}").bias.detach().clone() for role in roles}
        _loads()(mine, torch_mha)
        with torch.no_grad():
            for role, bias in kept.items():
                getattr(mine, f"w_{role}").bias.copy_(bias)

    return load


def _by_head(stacked):
    rest = stacked.shape[1:]
    return [t.reshape(-1, *rest) for t in stacked.reshape(4, 3, -1, *rest).unbind(1)]


def _every_third(stacked):
    return [stacked[i::3] for i in range(3)]


load_torch_weights = Exercise(
    "load_torch_weights",
    signature="mine torch_mha query key value",
    expects="nothing to return: afterwards mine(query, key, value) must equal torch_mha(query, key, value)[0].",
    reference=_loads(),
    parts=one_tensor("output of mine"),
    read=TORCH,
    apply=_load_and_run,
    probes=[
        Probe(label, (Fresh(_own_layer, "MultiHeadAttention(12, 4)"), Fresh(functools.partial(_torch_layer, zero), "nn.MultiheadAttention(12, 4, batch_first=True)"), *inputs))
        for label, zero, inputs in (
            ("cross-attention", False, (_Q, _K, _V)),
            ("self-attention", False, (_X, _X, _X)),
            ("biases that are 0", True, (_Q, _K, _V)),
        )
    ],
    mistakes=[
        Mistake(
            "par_per_head_qkv_layout",
            "You read in_proj_weight head by head. PyTorch stacks all of q, then all of k, then all of v.",
            TORCH,
            (_loads(cut=_by_head), _loads(cut=_every_third)),
        ),
        Mistake(
            "par_order_kqv",
            "The three parts of in_proj_weight are not in the order you read them in.",
            TORCH,
            tuple(_loads(order) for order in ("kqv", "vkq", "qvk", "kvq", "vqk")),
        ),
        Mistake(
            "par_out_proj_forgotten",
            "The last linear keeps its random weights: out_proj was not copied, or not whole.",
            TORCH,
            (_loads(out=""), _loads(out="w"), _loads(out="b"), _loads(out="w0")),
        ),
        Mistake(
            "par_bias_forgotten",
            "The weights are right, the biases are not PyTorch's. Its biases start at 0, which hides a forgotten one.",
            TORCH,
            (_loads(bias=False, out="w0"), _loads(bias=False), *map(_biases_left, ("qkvo", "qkv", "q", "v", "qk"))),
        ),
        Mistake(
            "par_weight_transposed",
            "Your weights are turned over. Both sides store them as (out, in).",
            TORCH,
            (_loads(transpose=True),),
        ),
        Mistake(
            "par_nothing_copied",
            "Your layer still has its own weights: nothing was copied into it.",
            TORCH,
            (lambda mine, torch_mha: None,),
        ),
        Mistake(
            "par_one_part_for_all",
            "All three linears got the same part of in_proj_weight.",
            TORCH,
            tuple(_loads(cut=lambda s, i=i: [s.chunk(3)[i]] * 3) for i in range(3)),
        ),
        Mistake(
            "par_grad_mode",
            "A parameter is written to while autograd watches. Copying is no part of a computation.",
            TORCH,
            sign=lambda trials: all("leaf Variable that requires grad" in str(t.seen.error) for t in trials),
        ),
    ],
)


def _fresh_pair():
    return seeded(lambda: planted.Layer(4), 9)


def _layer_right(query, key, value):
    layer = _fresh_pair()
    output, _ = reference_attention(layer.w_q(query), layer.w_k(key), layer.w_v(value))
    return layer.w_o(output)


bug_layer = BugHunt(
    "bug_layer",
    signature="query key value",
    expects="the arguments (query, key, value), each (B, T, 4), of a call on which the layer gives a wrong output.",
    reference=_layer_right,
    buggy=lambda query, key, value: _fresh_pair()(query, key, value),
    read=LAYER,
    lucky=(
        Lucky(
            "hidden_by_self_attention",
            "Key and value are the same here. Wherever one is taken for the other, nobody sees it.",
            lambda query, key, value: key.shape == value.shape and bool(torch.allclose(key, value)),
        ),
    ),
)
