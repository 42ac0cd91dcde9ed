"""The known mistakes in switching heads of a BERT model off."""

import torch

from mha_lib.checks.case import Mistake, Sign


def prunes(*cuts, heads=lambda heads: heads, part=lambda layer: layer.attention):
    """Return a way to switch heads off: each cut gets a part of a layer, the block of a head, and the head."""

    def prune(model, wanted):
        width = model.config.hidden_size // model.config.num_attention_heads
        with torch.no_grad():
            for layer, head in heads(list(wanted)):
                for cut in cuts:
                    cut(part(model.encoder.layer[layer]), slice(head * width, (head + 1) * width), head)

    return prune


def cut_columns(bert, block, head):
    bert.output.dense.weight[:, block] = 0


def _rows(linear_of, bias=False):
    def cut(bert, block, head):
        linear_of(bert).weight[block] = 0
        if bias:
            linear_of(bert).bias[block] = 0

    return cut


def _of_output(bert):
    return bert.output.dense


def _of_value(bert):
    return bert.self.value


def _of_query(bert):
    return bert.self.query


def _of_key(bert):
    return bert.self.key


def _fixed_width(bert, block, head):
    bert.output.dense.weight[:, 32 * head : 32 * head + 32] = 0


def _whole(bert, block, head):
    bert.output.dense.weight.zero_()


def _one_column(bert, block, head):
    bert.output.dense.weight[:, head] = 0


def _biases(bert, block, head):
    bert.output.dense.bias.zero_()


def _bias_block(bert, block, head):
    bert.output.dense.bias[block] = 0


def _grad_mode(trials):
    return all("leaf Variable that requires grad" in str(t.seen.error) for t in trials if t.is_wrong)


PRUNE = (
    Mistake(
        "prune_rows",
        "You cut rows of the last linear: features of the output. A head comes in through columns.",
        prunes(_rows(_of_output)),
        prunes(_rows(_of_output, bias=True)),
    ),
    Mistake(
        "prune_value_bias_left",
        "The value's weights of the head are 0, its bias still flows.",
        prunes(_rows(_of_value)),
    ),
    Mistake(
        "prune_looks_everywhere",
        "You changed the head's queries or keys. It looks elsewhere now, and still moves values.",
        *(prunes(_rows(of, bias)) for of in (_of_query, _of_key) for bias in (False, True)),
        prunes(_rows(_of_query, True), _rows(_of_key, True)),
    ),
    Mistake(
        "prune_width_fixed",
        "You cut blocks of 32 features. That is the width of MiniLM's heads; the model here has narrower ones.",
        prunes(_fixed_width),
    ),
    Mistake(
        "prune_one_column",
        "You cut one column for each head. A head has as many columns as it has features.",
        prunes(_one_column),
    ),
    Mistake(
        "prune_feed_forward",
        "You cut the linear of the feed-forward part, which is called the same. That of the attention stands "
        "inside `attention`.",
        prunes(cut_columns, part=lambda layer: layer),
    ),
    Mistake("prune_whole_layer", "You switch off the whole layer's attention, not one head of it.", prunes(_whole)),
    Mistake(
        "prune_bias_too",
        "The bias of the last linear is changed as well. It belongs to no head.",
        prunes(cut_columns, _biases),
        prunes(cut_columns, _bias_block),
    ),
    Mistake(
        "prune_head_before_layer",
        "You read a pair as (head, layer). It is (layer, head).",
        prunes(cut_columns, heads=lambda heads: [(h, l) for l, h in heads]),
    ),
    Mistake(
        "prune_one_of_them",
        "Only one of the heads of the list is switched off.",
        prunes(cut_columns, heads=lambda heads: heads[:1]),
        prunes(cut_columns, heads=lambda heads: [heads[0]]),
        prunes(cut_columns, heads=lambda heads: heads[-1:]),
    ),
    Mistake(
        "prune_shifted_by_one",
        "You count heads or layers from 1: the one beside is switched off.",
        prunes(cut_columns, heads=lambda heads: [(l, h - 1) for l, h in heads]),
        prunes(cut_columns, heads=lambda heads: [(l - 1, h) for l, h in heads]),
        prunes(cut_columns, heads=lambda heads: [(l - 1, h - 1) for l, h in heads]),
    ),
    Mistake("prune_nothing", "The model is as it was: your changes went into a copy, or nowhere.", prunes()),
    Mistake(
        "prune_grad_mode",
        "A parameter is written to while autograd watches. Switching a head off is no part of a computation.",
        Sign(_grad_mode),
    ),
)
