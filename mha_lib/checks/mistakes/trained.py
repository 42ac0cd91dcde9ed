"""The known mistakes in reading trained heads, and in switching them off."""

from collections.abc import Callable

import torch

from mha_lib.checks.case import Mistake, Sign
from mha_lib.experiments import lookups


def diagonal(weights, back):
    return weights.diagonal(-back, -2, -1)


def around(weights, back):
    here = torch.arange(weights.size(-1))
    return weights[..., here, (here - back) % len(here)]


LOOKS_BACK = (
    Mistake(
        "looks_ahead",
        "You read the weights on later tokens: query and key have changed places.",
        lambda w, b: w.diagonal(b, -2, -1).mean(dim=(0, -1)),
    ),
    Mistake(
        "looks_around_the_end",
        "You look around the end of the sentence. The first queries have no such token and are left out.",
        lambda w, b: around(w, b).mean(dim=(0, -1)),
    ),
    Mistake(
        "looks_divided_by_all",
        "You divide by the number of all queries. Some of them have no such token: fewer take part.",
        lambda w, b: diagonal(w, b).sum(-1).mean(0) / w.size(-1),
    ),
    Mistake(
        "looks_summed",
        "You add up where a mean is asked for.",
        lambda w, b: diagonal(w, b).sum(dim=(0, -1)),
        lambda w, b: diagonal(w, b).sum(-1).mean(0),
        lambda w, b: diagonal(w, b).mean(-1).sum(0),
    ),
    Mistake(
        "looks_heads_averaged",
        "You average over the heads. What one head does alone is then gone.",
        lambda w, b: diagonal(w, b).mean(),
        lambda w, b: diagonal(w, b).mean(dim=(1, -1)),
    ),
    Mistake(
        "looks_sentences_apart",
        "There is a number for each sentence still. Asked for is one for each head.",
        lambda w, b: diagonal(w, b).mean(-1),
    ),
    Mistake(
        "looks_first_sentence",
        "You look at one sentence of the batch.",
        lambda w, b: diagonal(w[0], b).mean(-1),
        lambda w, b: diagonal(w[-1], b).mean(-1),
    ),
    Mistake(
        "looks_queries_apart",
        "There is a number for each query still. Asked for is their mean.",
        lambda w, b: diagonal(w, b).mean(0),
        lambda w, b: diagonal(w, b).mean((0, 1)),
    ),
    Mistake(
        "looks_through_other_axes",
        "Your diagonal runs through other axes than the queries and the keys: unless it is told two axes, it takes the "
        "first two.",
        *(
            lambda w, b, axes=axes, two=two: w.diagonal(-b, *two).mean(axes)
            for two in ((0, 1), (1, 2), (0, 2), (1, 3))
            for axes in ((0,), (-1,), (0, -1), (0, 1), (1,), (1, -1), (-2, -1), (0, 1, -1))
        ),
    ),
    Mistake(
        "looks_from_the_next_query",
        "You begin one query too late: query number back has such a token as well, the first one.",
        lambda w, b: diagonal(w, b)[..., 1:].mean(dim=(0, -1)),
        lambda w, b: diagonal(w, b)[..., 1:].sum(-1).mean(0) / (w.size(-1) - b),
    ),
    Mistake(
        "looks_divided_by_heads",
        "You divide by the number of heads where that of the sentences is meant, or by back.",
        lambda w, b: diagonal(w, b).sum((0, -1)) / (w.size(1) * (w.size(-1) - b)),
        lambda w, b: diagonal(w, b).sum(-1).mean(0) / b,
    ),
    Mistake(
        "looks_mean_over_cells",
        "You average over all cells of the table, and all but those of one diagonal are 0. That diagonal alone counts.",
        lambda w, b: w.tril(-b).triu(-b).mean((0, 2, 3)),
    ),
    Mistake(
        "looks_at_a_block",
        "You average a whole block of the table. Of every query one cell is meant, back places before it.",
        lambda w, b: w[:, :, b:, :-b].mean((0, 2, 3)),
        lambda w, b: w[:, :, b:, : w.size(-1) - b].mean((0, 2, 3)),
    ),
    Mistake(
        "looks_at_one_column",
        "You read one column or one row of the table: what all queries give to one token, or what one query gives.",
        lambda w, b: w[:, :, b:, b].mean((0, 2)),
        lambda w, b: w[..., b].mean((0, 2)),
        lambda w, b: w[:, :, b:, 0].mean((0, 2)),
        lambda w, b: w[..., -1, -1 - b].mean(0),
    ),
    Mistake(
        "looks_whole_table",
        "You average over all keys. Every row sums to 1, so that is the same for every head.",
        lambda w, b: w.mean(dim=(0, 2, 3)),
    ),
    Mistake(
        "looks_one_off",
        "You look one place too far back, or too near.",
        lambda w, b: diagonal(w, b + 1).mean(dim=(0, -1)),
        lambda w, b: diagonal(w, b - 1).mean(dim=(0, -1)),
    ),
    Mistake(
        "looks_always_one_back",
        "You look at one distance, whatever is asked for.",
        lambda w, b: diagonal(w, 1).mean(dim=(0, -1)),
        lambda w, b: diagonal(w, 2).mean(dim=(0, -1)),
    ),
    Mistake(
        "looks_all_before",
        "You add the weights on all earlier tokens. Asked for is the one at that distance.",
        lambda w, b: w.tril(-b).sum(-1).mean(dim=(0, -1)),
        lambda w, b: w.tril(-b).sum(-1)[..., b:].mean(dim=(0, -1)),
        lambda w, b: w.tril(-b).mean(dim=(0, 2, 3)),
    ),
    Mistake(
        "looks_counted",
        "You count how often the largest weight stands there. Asked for is the weight itself.",
        lambda w, b: (w.argmax(-1)[..., b:] == torch.arange(w.size(-1) - b)).float().mean(dim=(0, -1)),
    ),
    Mistake(
        "looks_largest",
        "You take the largest weight at that distance, or the median. Asked for is the mean.",
        lambda w, b: diagonal(w, b).amax(dim=(0, -1)),
        lambda w, b: diagonal(w, b).amax(-1).mean(0),
        lambda w, b: diagonal(w, b).median(-1).values.mean(0),
    ),
)


def _block(layer, head):
    return slice(head * layer.d_k, (head + 1) * layer.d_k)


def zeroed(change: Callable):
    """Return a mimic that sets parameters of the layer to 0."""

    def switch(layer, head):
        with torch.no_grad():
            change(layer, head)

    return switch


def columns(layer, head):
    layer.w_o.weight[:, _block(layer, head)] = 0


SWITCH_OFF = (
    Mistake(
        "off_rows",
        "You zero rows of the last weight: features of the output, of all heads. A head comes in by columns.",
        zeroed(lambda l, i: l.w_o.weight[_block(l, i)].zero_()),
        zeroed(lambda l, i: l.w_o.weight[i].zero_()),
    ),
    Mistake(
        "off_bias_too",
        "The bias of the last linear belongs to no head, and you zero it as well.",
        zeroed(lambda l, i: (columns(l, i), l.w_o.bias.zero_())),
        zeroed(lambda l, i: (columns(l, i), l.w_o.bias[_block(l, i)].zero_())),
    ),
    Mistake(
        "off_one_column",
        "You zero one column. A head has as many as it has features.",
        zeroed(lambda l, i: l.w_o.weight[:, i].zero_()),
    ),
    Mistake(
        "off_one_column_left",
        "One column of the head is left: where a slice ends is no part of it.",
        zeroed(lambda l, i: l.w_o.weight[:, i * l.d_k : (i + 1) * l.d_k - 1].zero_()),
        zeroed(lambda l, i: l.w_o.weight[:, i * l.d_k + 1 : (i + 1) * l.d_k].zero_()),
    ),
    Mistake(
        "off_input_features",
        "You zero columns of a projection: features of the input, which all heads read. What a head makes of them are "
        "rows there.",
        *(zeroed(lambda l, i, n=n: getattr(l, n).weight[:, _block(l, i)].zero_()) for n in ("w_v", "w_q", "w_k")),
        zeroed(lambda l, i: [getattr(l, n).weight[:, _block(l, i)].zero_() for n in ("w_q", "w_k", "w_v")]),
    ),
    Mistake(
        "off_weakened",
        "The term of the head is weaker, or its sign is turned. It must be gone.",
        *(zeroed(lambda l, i, c=c: l.w_o.weight[:, _block(l, i)].mul_(c)) for c in (0.5, 0.1, 0.01, -1.0)),
    ),
    Mistake(
        "off_interleaved",
        "You zero every h-th column. The columns of a head are neighbours.",
        zeroed(lambda l, i: l.w_o.weight[:, i :: l.num_heads].zero_()),
    ),
    Mistake(
        "off_width_is_count",
        "You take the number of heads for the width of one.",
        zeroed(lambda l, i: l.w_o.weight[:, i * l.num_heads : (i + 1) * l.num_heads].zero_()),
    ),
    Mistake(
        "off_same_head_always",
        "You switch off the same head whatever is asked for.",
        zeroed(lambda l, i: columns(l, 0)),
        zeroed(lambda l, i: columns(l, l.num_heads - 1)),
    ),
    Mistake(
        "off_from_there_on",
        "You zero from that head on to the end, or up to it.",
        zeroed(lambda l, i: l.w_o.weight[:, i * l.d_k :].zero_()),
        zeroed(lambda l, i: l.w_o.weight[:, : (i + 1) * l.d_k].zero_()),
    ),
    Mistake(
        "off_the_others",
        "You switch off all heads but this one.",
        zeroed(lambda l, i: [columns(l, j) for j in range(l.num_heads) if j != i]),
    ),
    Mistake("off_all", "You switch off all heads.", zeroed(lambda l, i: l.w_o.weight.zero_())),
    Mistake(
        "off_a_neighbour",
        "You switch off a neighbour: the heads count from 0.",
        zeroed(lambda l, i: columns(l, i - 1)),
        zeroed(lambda l, i: columns(l, i + 1)),
    ),
    Mistake(
        "off_queries",
        "You changed where the head looks. Its term is still there.",
        *(
            zeroed(
                lambda l, i, n=n: (getattr(l, n).weight[_block(l, i)].zero_(), getattr(l, n).bias[_block(l, i)].zero_())
            )
            for n in ("w_q", "w_k")
        ),
        *(zeroed(lambda l, i, n=n: getattr(l, n).weight[_block(l, i)].zero_()) for n in ("w_q", "w_k")),
    ),
    Mistake(
        "off_values_bias_left",
        "The values of the head are 0 but for their bias, and that still goes through.",
        zeroed(lambda l, i: l.w_v.weight[_block(l, i)].zero_()),
    ),
    Mistake("off_nothing", "Nothing was switched off: the layer's own weight is as before.", lambda l, i: None),
    Mistake(
        "off_grad_mode",
        "A parameter is written to while autograd watches. Switching off is no part of a computation.",
        Sign(lambda trials: all(w in str(t.seen.error) for t in trials for w in ("leaf Variable",))),
    ),
)


def _accuracy_with(change: Callable):
    """Return a mimic that measures what change leaves of the model, then makes the model anew."""

    def measure(model, head):
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            change(model.attention, head)
            shares = lookups.accuracy(model)
        model.load_state_dict(kept)
        return shares

    return measure


accuracy_off = _accuracy_with(columns)


def _difference(model, head):
    return [x - y for x, y in zip(lookups.accuracy(model), accuracy_off(model, head))]


WITHOUT = (
    Mistake(
        "without_nothing_off",
        "That is the accuracy of the whole model: when you measured, the head was on.",
        lambda m, i: lookups.accuracy(m),
    ),
    Mistake(
        "without_the_others",
        "You measured with this head alone, the others off.",
        _accuracy_with(lambda l, i: [columns(l, j) for j in range(l.num_heads) if j != i]),
    ),
    Mistake("without_all", "You measured with all heads off.", _accuracy_with(lambda l, i: l.w_o.weight.zero_())),
    Mistake(
        "without_a_neighbour",
        "You measured without a neighbour of that head, or without the same head always.",
        *(
            _accuracy_with(lambda l, i, f=f: columns(l, f(i, l.num_heads)))
            for f in (lambda i, h: (i + 1) % h, lambda i, h: (i - 1) % h, lambda i, h: 0, lambda i, h: h - 1)
        ),
    ),
    Mistake(
        "without_loss_of_accuracy",
        "That is how much the loss of the head costs. Asked for is what is left.",
        _difference,
    ),
    Mistake(
        "without_one_column",
        "One feature of the head was off when you measured, not all.",
        _accuracy_with(lambda l, i: l.w_o.weight[:, i].zero_()),
    ),
    Mistake(
        "without_rows",
        "You zero rows of the last weight: features of the output, of all heads. A head comes in by columns.",
        _accuracy_with(lambda l, i: l.w_o.weight[_block(l, i)].zero_()),
        _accuracy_with(lambda l, i: l.w_o.weight[i].zero_()),
    ),
    Mistake("without_swapped", "The two questions stand in the wrong order.", lambda m, i: accuracy_off(m, i)[::-1]),
    Mistake(
        "without_from_there_on",
        "You measured without that head and those behind it, or before it.",
        _accuracy_with(lambda l, i: l.w_o.weight[:, i * l.d_k :].zero_()),
        _accuracy_with(lambda l, i: l.w_o.weight[:, : (i + 1) * l.d_k].zero_()),
    ),
    Mistake(
        "without_share_wrong", "That is the share of wrong answers.", lambda m, i: [1 - s for s in accuracy_off(m, i)]
    ),
    Mistake(
        "without_percent",
        "That is in percent. Asked for are shares between 0 and 1.",
        lambda m, i: [100 * s for s in accuracy_off(m, i)],
    ),
)
