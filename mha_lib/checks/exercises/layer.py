"""The checks of chapter 5: dropout on the weights, and the whole layer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Fresh, Mistake, Probe
from mha_lib.checks.classes import layer
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.compare import first_of
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, padding
from mha_lib.checks.mistakes.heads import head_mistakes
from mha_lib.checks.recipe import attention_with, layer_with, linear
from mha_lib.experiments.training import seeded
from mha_lib.masks import causal_mask

_INPUTS = (normal(2, 4, 8, seed=101), normal(2, 5, 8, seed=102), normal(2, 5, 6, seed=103))
_BY_HEADS = (normal(2, 3, 4, 8, seed=104), normal(2, 3, 5, 8, seed=105), normal(2, 3, 5, 7, seed=106))


def _at_work():
    return Fresh(lambda: nn.Dropout(0.5).train(), "nn.Dropout(0.5) in training mode")


def _drop(x, dropout):
    return x if dropout is None else dropout(x)


def _dropping(on):
    """Return attention that drops elsewhere: on(query, key, value, dropout)."""
    return lambda query, key, value, mask=None, dropout=None: on(query, key, value, dropout)


def _attend(query, key, value):
    return attention_with()(query, key, value)


dropout = Exercise(
    "dropout",
    signature="query key value dropout",
    expects="a pair (output, weights): the output mixed with the weights that went through dropout.",
    reference=attention_with,
    parts=first_of("output"),
    read=read.DROP,
    way=lambda query, key, value, module: attention_with.way(query, key, value, None, module),
    apply=lambda function, query, key, value, module: function(query, key, value, dropout=module),
    probes=[
        Probe("a dropout at work", (*_INPUTS, _at_work())),
        Probe("no dropout", (*_INPUTS, None)),
        Probe("a head axis in front", (*_BY_HEADS, _at_work())),
        Probe("dropout in eval mode", (*_INPUTS, Fresh(lambda: nn.Dropout(0.5).eval(), "nn.Dropout(0.5) in eval mode"))),
        Probe("another rate", (*_INPUTS, Fresh(lambda: nn.Dropout(0.2).train(), "nn.Dropout(0.2) in training mode"))),
    ],
    mistakes=[
        Mistake(
            "dropout_not_applied",
            "The dropout is given, but takes no part in the output: it is never called, called on something that the output "
            "does not use, or switched to eval mode.",
            attention_with(drop=lambda w, d: w),
        ),
        Mistake(
            "dropout_on_scores",
            "Your dropout acts before the softmax. A score of 0 is not a weight of 0.",
            _dropping(lambda q, k, v, d: (_drop(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), d).softmax(-1) @ v, None)),
            _dropping(lambda q, k, v, d: ((_drop(q @ k.transpose(-2, -1), d) / math.sqrt(q.size(-1))).softmax(-1) @ v, None)),
        ),
        Mistake(
            "dropout_on_output",
            "Your dropout acts on the output. Here it acts on the weights, between softmax and mixture.",
            _dropping(lambda q, k, v, d: (_drop(_attend(q, k, v)[0], d), None)),
        ),
        Mistake(
            "dropout_on_values",
            "Your dropout acts on the values. Here it acts on the weights.",
            _dropping(lambda q, k, v, d: _attend(q, k, _drop(v, d))),
        ),
        Mistake(
            "dropout_on_inputs",
            "Your dropout acts on the queries or keys. Here it acts on the weights.",
            _dropping(lambda q, k, v, d: _attend(_drop(q, d), k, v)),
            _dropping(lambda q, k, v, d: _attend(q, _drop(k, d), v)),
        ),
        Mistake(
            "dropout_twice",
            "Your dropout is applied twice.",
            attention_with(drop=lambda w, d: w if d is None else d(d(w))),
        ),
        Mistake(
            "dropout_renormalised",
            "After the dropout you make the rows sum to 1 again. Dropout has already enlarged what it left.",
            attention_with(drop=lambda w, d: w if d is None else (x := d(w)) / x.sum(-1, keepdim=True)),
            attention_with(drop=lambda w, d: w if d is None else d(w).softmax(-1)),
        ),
        Mistake(
            "dropout_required",
            "Without a dropout your function raises. None means: drop nothing.",
            attention_with(drop=lambda w, d: d(w)),
        ),
        Mistake(
            "dropout_of_its_own",
            "You drop with a dropout of your own. The one that is given knows its rate and whether training is on.",
            attention_with(drop=lambda w, d: w if d is None else F.dropout(w, d.p)),
            attention_with(drop=lambda w, d: w if d is None else nn.Dropout(d.p)(w)),
            *(attention_with(drop=lambda w, d, p=p: w if d is None else F.dropout(w, p)) for p in (0.1, 0.5)),
        ),
        Mistake(
            "dropout_by_hand_without_rescale",
            "What is left is not enlarged as the dropout does it.",
            attention_with(drop=lambda w, d: w if d is None else w * (d(w) != 0)),
            attention_with(drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) > d.p)),
            attention_with(drop=lambda w, d: w if d is None or not d.training else w * (torch.rand_like(w) >= d.p).float()),
        ),
    ],
)

_Q, _K, _V = normal(3, 4, 12, seed=111), normal(3, 6, 12, seed=112), normal(3, 6, 12, seed=113)
_X, _X_HEADS = normal(3, 5, 12, seed=114), normal(4, 5, 12, seed=115)
_ONE, _WIDE = normal(1, 5, 12, seed=116), normal(3, 5, 16, seed=117)
_CAUSAL = causal_mask(5).expand(3, 5, 5)

multi_head_attention = ClassExercise(
    "multi_head_attention",
    signature="d_model num_heads query key value mask",
    build_with="d_model num_heads",
    roles={role: ("d_model", "d_model") for role in ("w_q", "w_k", "w_v", "w_o")},
    expects="a class MultiHeadAttention(d_model, num_heads, dropout=0.0) whose call "
    "(query, key, value, mask=None) gives the output (B, T_q, d_model).",
    reference=layer_with,
    parts=first_of("output"),
    read=read.LAYER,
    # Whatever the weights of attention are, they sum to 1: only w_v and w_o matter here.
    narrow=Probe("the same value everywhere", (12, 4, _Q, _K, _V[:, :1].expand_as(_V), None)),
    probes=[
        Probe("self-attention", (12, 4, _X, _X, _X, None)),
        Probe("cross-attention", (12, 4, _Q, _K, _V, None)),
        Probe("a causal mask", (12, 4, _X, _X, _X, _CAUSAL)),
        Probe("a padding mask", (12, 4, _Q, _K, _V, padding(3, 6))),
        Probe("as many sentences as heads", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5))),
        Probe("padding and causal", (12, 4, _X, _X, _X, padding(3, 5) & _CAUSAL)),
        Probe("a mask that blocks nothing", (12, 4, _X, _X, _X, torch.ones(3, 5, 5, dtype=torch.bool))),
        Probe("one sentence", (12, 4, _ONE, _ONE, _ONE, None)),
        Probe("another number of heads", (12, 2, _Q, _K, _V, None)),
        Probe("as many features in a head as heads", (16, 4, _WIDE, _WIDE, _WIDE, None)),
        Probe("gradients", (12, 4, _Q, _K, _V, None), gradient=True, tolerance=1e-4),
        Probe(
            "a mask with a head axis", (12, 4, _X_HEADS, _X_HEADS, _X_HEADS, padding(4, 5).unsqueeze(1)), judged=False
        ),
        Probe("one head", (12, 1, _Q, _K, _V, None), judged=False),
    ],
    mistakes=[
        # what shows in the parts of a module, or in the sizes on which it raises
        Mistake(
            "mha_no_parameters",
            "Your module registers no parameters: linears in a plain list or made in forward are invisible to an optimiser.",
            layer.no_parameters,
            read=read.CLONES,
        ),
        Mistake(
            "mha_full_width_heads",
            "Every head is as wide as the whole layer. The heads share d_model: each gets d_model // num_heads of it.",
            layer.full_width,
            read=read.CUT,
        ),
        Mistake(
            "mha_split_then_small_linear",
            "You split first and send every head through one small linear. The linears see all features; the split comes after.",
            layer.small_linear,
        ),
        Mistake(
            "mha_one_head_for_k_and_v",
            "Keys and values have a single head, shared by all heads of the queries. That is another layer, multi-query attention.",
            layer.one_key_head,
        ),
        Mistake(
            "mha_rebinds_query_in_loop",
            "Inside the loop over heads you overwrite the input with its projection: the next head projects a projection.",
            layer.rebinds_in_loop,
            read=read.LOOP,
        ),
        Mistake(
            "mha_shared_linear",
            "Your linears are one and the same object: they share their weights.",
            layer.shared_linear,
            layer.linear_twice,
            read=read.CLONES,
        ),
        Mistake(
            "mha_batch_size_stored",
            "Your layer works for one batch size only. Read it from the input, every time.",
            layer.one_batch_size,
        ),
        Mistake(
            "mha_fixed_context_buffer",
            "Your layer works for some lengths of sentence only: a size in it is fixed.",
            layer.one_length,
        ),
        Mistake(
            "mha_holds_the_course_layer",
            "Your class holds the course's own layer. Asked for is a layer made of linears, attention and heads.",
            layer.own_layer_inside,
        ),
        Mistake(
            "mha_keeps_state",
            "Your layer remembers earlier calls: the same input gives another output after another input.",
            layer.keeps_state,
        ),
        Mistake(
            "mha_sdpa_dropout_in_eval",
            "In eval mode your dropout is still on: scaled_dot_product_attention drops whenever it gets a rate.",
            layer.dropped_in_eval_by_sdpa,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_created_in_forward",
            "In eval mode your dropout is still on: a module made inside forward is always in training mode.",
            layer.dropped_in_eval_by_new,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_functional_always_on",
            "In eval mode your dropout is still on: the function is not told whether training is on.",
            layer.dropped_in_eval,
            read=read.DROP,
        ),
        Mistake(
            "mha_left_in_training",
            "In eval mode your dropout is still on: something in forward switches it back to training mode.",
            layer.left_in_training,
            read=read.DROP,
        ),
        Mistake(
            "mha_drawn_anew",
            "In eval mode two passes differ: something is drawn anew in every call, be it weights or a dropout by hand.",
            layer.drawn_anew,
        ),
        Mistake(
            "mha_no_dropout_argument",
            "Your class cannot be built with a dropout. Its constructor takes d_model, num_heads and dropout.",
            layer.no_dropout_argument,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_never",
            "Your dropout is never applied: two passes in training mode give the same.",
            layer.never_dropped,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_zeroed_forever",
            "After eval() and train() your dropout stays off: something switched it off for good.",
            layer.dropped_once,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_on_scores",
            "Your dropout acts on the scores, before the softmax. A score of 0 is not a weight of 0.",
            layer.dropped_from_scores,
            read=read.DROP,
        ),
        Mistake(
            "mha_dropout_elsewhere",
            "Your dropout acts on inputs, heads or output. Here it acts on the weights, between softmax and mixture.",
            layer.dropped_elsewhere,
            read=read.DROP,
        ),
        Mistake(
            "mha_indivisible_accepted",
            "Ten features and four heads do not come out even, and your class says nothing.",
            layer.indivisible_accepted,
        ),
        Mistake(
            "mha_no_gradient",
            "A parameter gets no gradient: the way back is cut, or it takes no part.",
            layer.no_gradient,
        ),
        Mistake(
            "mha_parameter_count",
            "The number of parameters is not that of four linears from d_model to d_model.",
            layer.parameter_count,
        ),
        # what is told apart by numbers
        Mistake(
            "mha_key_projection_for_all",
            "All three inputs go through the same linear.",
            *(layer_with(through=lambda role=role: (role,) * 3) for role in ("w_k", "w_q", "w_v")),
        ),
        Mistake(
            "mha_value_through_w_k",
            "One of the three inputs goes through the linear of another: a linear is used twice, and one never.",
            *(
                layer_with(through=lambda roles=roles: roles)
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
            *(
                layer_with(through=lambda roles=roles: roles)
                for roles in (
                    ("w_k", "w_q", "w_v"),
                    ("w_q", "w_v", "w_k"),
                    ("w_v", "w_k", "w_q"),
                    ("w_k", "w_v", "w_q"),
                    ("w_v", "w_q", "w_k"),
                )
            ),
        ),
        Mistake(
            "mha_value_is_key_input",
            "The value projection is fed with the key. As long as key and value are the same tensor, nobody sees it.",
            layer_with(feed=lambda q, k, v: (q, k, k)),
        ),
        Mistake(
            "mha_wrong_input",
            "A projection is fed with the wrong input. In self-attention, where all three are the same, nobody sees it.",
            layer_with(feed=lambda q, k, v: (q, q, q)),
            layer_with(feed=lambda q, k, v: (k, k, k)),
            layer_with(feed=lambda q, k, v: (q, q, v)),
            layer_with(feed=lambda q, k, v: (q, v, v)),
            layer_with(feed=lambda q, k, v: (q, v, k)),
            layer_with(feed=lambda q, k, v: (k, q, v)),
        ),
        Mistake(
            "mha_no_projections",
            "The heads are slices of the raw inputs: there are no linears for query, key and value, or they are not used.",
            layer.one_linear_only,
            layer_with(through=lambda: (None, None, None)),
            layer_with(through=lambda: ("w_q", "w_k", None)),
            layer_with(through=lambda: (None, "w_k", "w_v")),
            layer_with(through=lambda: ("w_q", None, "w_v")),
        ),
        Mistake(
            "mha_no_output_projection",
            "There is no W_O at the end, or it is not used: every head stays in its own corner.",
            layer_with(output=lambda w, merged: merged),
            read=read.MIX,
        ),
        Mistake(
            "mha_output_projection_twice",
            "W_O is applied twice.",
            layer_with(output=lambda w, merged: linear(w, "w_o", linear(w, "w_o", merged))),
            read=read.MIX,
        ),
        Mistake(
            "mha_residual_inside",
            "You add the query to the result. That belongs to the block around this layer.",
            layer_with(after=lambda output, query: output + query),
        ),
        Mistake(
            "mha_residual_and_norm_inside",
            "There is a LayerNorm inside. Residual and norm belong to the block around this layer.",
            layer.norm_inside,
            layer_with(after=lambda output, query: F.layer_norm(output + query, output.shape[-1:])),
            layer_with(after=lambda output, query: F.layer_norm(output, output.shape[-1:])),
        ),
        # what must hold whatever the weights and their names
        Mistake(
            "mha_nan",
            "The output holds NaN.",
            layer.holds_nan,
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_input_unused",
            "Query, key or value has no effect on the output.",
            layer.input_unused,
        ),
        Mistake(
            "mha_sentences_mixed",
            "The output of one sentence depends on the others in the batch.",
            layer.sentences_mixed,
            read=read.CUT,
        ),
        *head_mistakes(
            layer_with,
            head_axis_lost=(layer.mask_of_another,),
            always_causal=(layer.always_causal,),
            activation=(
                layer_with(after=lambda output, query: output.relu()),
                layer_with(after=lambda output, query: F.gelu(output)),
            ),
        ),
        Mistake(
            "mha_open_mask_changes",
            "A mask that blocks nothing changes the output.",
            layer.open_mask_changes,
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_leaks_future",
            "With a causal mask a later token still moves an earlier output.",
            layer.leaks_future,
            read=read.CAUSAL,
        ),
        Mistake(
            "mha_blind_to_past",
            "With a causal mask a later token does not see the first one.",
            layer.blind_to_past,
            read=read.CAUSAL,
        ),
        Mistake(
            "mha_sees_padding",
            "What stands in blocked places moves the output.",
            layer.sees_padding,
            read=read.HEAD_AXIS,
        ),
        Mistake(
            "mha_not_an_average",
            "With equal values the output still depends on query or mask: the weights do not average.",
            layer.not_an_average,
            read=read.LOOP,
        ),
        Mistake(
            "mha_not_linear_in_values",
            "The output is not a linear function of the values.",
            layer.not_linear_in_values,
        ),
        Mistake(
            "mha_order_of_queries",
            "Reordering the queries does not reorder the outputs in the same way.",
            layer.order_of_queries,
            read=read.CUT,
        ),
        Mistake(
            "mha_order_of_keys",
            "Reordering keys and values together changes the output.",
            layer.order_of_keys,
            read=read.CUT,
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
    read=read.LAYER,
    lucky=(
        Lucky(
            "hidden_by_self_attention",
            "Key and value are the same here, or nearly. Wherever one is taken for the other, nobody sees it.",
            lambda query, key, value: key.shape == value.shape and bool(torch.allclose(key, value)),
        ),
    ),
)
