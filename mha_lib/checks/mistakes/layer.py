"""The known mistakes in the whole layer."""

import torch.nn.functional as F

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.classes import layer
from mha_lib.checks.mistakes.heads import head_mistakes
from mha_lib.checks.recipe import layer_with, linear


def _without_bias(weights, role, x):
    return F.linear(x, weights[role][0])


def _returns_weights(trials) -> bool:
    """Say whether what comes out has the rows of weights, one table for each head."""
    seen = [part.detach() for t in trials if not t.probe.gradient for part in t.seen.parts.values()]
    return bool(seen) and all(
        x.dim() == 4 and bool((x.sum(-1) - 1).abs().max() < 1e-3) and bool((x >= 0).all()) for x in seen
    )


LAYER = (
    # what shows in the parts of a module, or in the sizes on which it raises
    Mistake(
        "mha_no_parameters",
        "Your module registers no parameters: linears in a plain list or made in forward are invisible to an "
        "optimiser.",
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
        "You split first and send every head through one small linear. The linears see all features; the split comes "
        "after.",
        layer.small_linear,
    ),
    Mistake(
        "mha_one_head_for_k_and_v",
        "Keys and values have a single head, shared by all heads of the queries. That is another layer, multi-query "
        "attention.",
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
        "mha_dropout_in_two_places",
        "But your dropout acts on the weights, and in another place as well: on inputs, heads or output. Asked for is "
        "the weights alone.",
        layer.dropped_in_two_places,
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
        "The heads are slices of the raw inputs: the linears for query, key and value are missing, or are not used in "
        "front "
        "of the attention.",
        layer.one_linear_only,
        layer_with(through=lambda: (None, None, None)),
        layer_with(through=lambda: ("w_q", "w_k", None)),
        layer_with(through=lambda: (None, "w_k", "w_v")),
        layer_with(through=lambda: ("w_q", None, "w_v")),
        *(
            layer_with(
                through=lambda: (None, None, None),
                output=lambda w, merged, role=role: linear(w, "w_o", linear(w, role, merged)),
            )
            for role in ("w_v", "w_q", "w_k")
        ),
    ),
    Mistake(
        "mha_no_output_projection",
        "There is no W_O at the end, or it is not used: every head stays in its own corner.",
        layer_with(output=lambda w, merged: merged),
        read=read.MIX,
    ),
    Mistake(
        "mha_bias_left_out",
        "The biases of your linears take no part, or not all of them: what goes in meets the weights alone.",
        layer_with(project=_without_bias),
        layer_with(output=lambda w, merged: _without_bias(w, "w_o", merged)),
        layer_with(project=_without_bias, output=lambda w, merged: _without_bias(w, "w_o", merged)),
    ),
    Mistake(
        "mha_weights_first",
        "The first thing you return are the weights. The output comes first, or alone.",
        Sign(_returns_weights),
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
)
