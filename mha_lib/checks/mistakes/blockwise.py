"""The known mistakes in a softmax that runs over blocks, alone and inside attention."""

import math

import torch

from mha_lib.attention import attention as reference_attention
from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.compare import close
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.at_once import whole_table
from mha_lib.checks.recipe import Recipe


def _pieces_of(steps, scores, values, block):
    """Walk over the columns of scores (..., T_q, T_k) in blocks; return the output and each row's log-sum-exp."""
    scores = steps.look(scores)
    high = scores.new_full(scores.shape[:-1], steps.start())
    sums, mix = torch.zeros_like(high), scores.new_zeros(*high.shape, values.size(-1))
    for i in steps.pieces(scores.size(-1), block, scores.size(-2)):
        s, v = steps.block(scores[..., i : i + block]), values[..., i : i + block, :]
        new = steps.highest(high, s)
        rescale = steps.rescale(high, new)
        e = steps.exp(s, new.unsqueeze(-1), high.unsqueeze(-1))
        sums = steps.sum(sums, e, rescale)
        mix = steps.mix(mix, e, v, rescale.unsqueeze(-1), sums.unsqueeze(-1))
        high = steps.keep(new, high)
    return steps.divide(mix, sums.unsqueeze(-1)), steps.total(high, sums, scores)


def _running(steps, note, scores, values, block):
    return _pieces_of(steps, scores, values, block)[0]


_STEPS = {
    "look": lambda scores: scores,
    "start": lambda: -math.inf,
    "pieces": lambda keys, block, queries: range(0, keys, block),
    "block": lambda s: s,
    "highest": lambda high, s: torch.maximum(high, s.amax(-1)),
    "rescale": lambda old, new: (old - new).exp(),
    "exp": lambda s, new, old: (s - new).exp(),
    "sum": lambda sums, e, r: sums * r + e.sum(-1),
    "mix": lambda mix, e, v, r, sums: mix * r + e @ v,
    "keep": lambda new, old: new,
    "divide": lambda mix, sums: mix / sums,
    "total": lambda high, sums, scores: high + sums.log(),
}


running_with = Recipe(_running, **_STEPS)


def _none(old, new):
    return torch.ones_like(new)


def _shares(e):
    return e / e.sum(-1, keepdim=True)


def _mean_of_the_rest(mix, e, v, r, sums):
    return mix + _shares(e) @ v


def _block_alone(high, s):
    return s.amax(-1)


def _mean_of_blocks(scores, values, block):
    parts = [s.softmax(-1) @ v for s, v in zip(scores.split(block, -1), values.split(block, -2))]
    return torch.stack(parts).mean(0)


_RESCALING = (  # id, sentence, ways to make it, where to read again
    (
        "not_rescaled",
        "What was added up before is not rescaled when the maximum rises.",
        [{"rescale": _none}],
        read.RUNNING,
    ),
    (
        "sum_not_rescaled",
        "You rescale the mixture and not the sum.",
        [{"sum": lambda sums, e, r: sums + e.sum(-1)}],
        read.RUNNING,
    ),
    (
        "mixture_not_rescaled",
        "You rescale the sum and not the mixture.",
        [{"mix": lambda mix, e, v, r, sums: mix + e @ v}],
        read.RUNNING,
    ),
    (
        "rescaled_the_wrong_way",
        "You rescale by exp(new - old). What was taken below the old maximum becomes smaller, not larger.",
        [
            {"rescale": lambda old, new: torch.where(old.isinf(), 0.0, (new - old).exp())},
            {"rescale": lambda old, new: (new - old).exp()},
        ],
        read.RUNNING,
    ),
    (
        "block_rescaled_too",
        "The new block is rescaled as well. Its exponentials were taken below the new maximum; only what was added up "
        "before was not.",
        [
            {"sum": lambda sums, e, r: (sums + e.sum(-1)) * r},
            {"mix": lambda mix, e, v, r, sums: (mix + e @ v) * r},
            {"sum": lambda sums, e, r: (sums + e.sum(-1)) * r, "mix": lambda mix, e, v, r, sums: (mix + e @ v) * r},
        ],
        read.RUNNING,
    ),
    (
        "maximum_from_0",
        "Your maximum begins at 0, or at another number. Where all scores lie far below it, every exponential is 0, "
        "and 0/0 is NaN.",
        [{"start": lambda f=f: f} for f in (0.0, -100.0, -1e3, -1e4)],
        read.FOUR_WAYS,
    ),
    (
        "maximum_of_the_block",
        "Your maximum is that of the block alone. The running one never falls; where yours does, the rescaling "
        "overflows.",
        [{"highest": _block_alone}],
        read.RUNNING,
    ),
    (
        "maximum_of_all_rows",
        "One maximum serves all rows: a row far below it loses all its exponentials. Each row has its own.",
        [
            {"highest": lambda high, s: torch.maximum(high, s.amax())},
            {"highest": lambda high, s: torch.maximum(high, s.amax((-2, -1), keepdim=True)[..., 0])},
        ],
        read.RUNNING,
    ),
    (
        "below_the_old_maximum",
        "The exponentials of a block are taken below the old maximum, which is −∞ before the first block.",
        [{"exp": lambda s, new, old: (s - old).exp()}],
        read.RUNNING,
    ),
    (
        "divided_in_each_block",
        "You divide in each block, so a block no longer counts by what its exponentials sum to. The division comes "
        "once, at "
        "the end.",
        [
            {"mix": lambda mix, e, v, r, sums: mix * r + _shares(e) @ v},
            {
                "mix": lambda mix, e, v, r, sums: mix * r + _shares(e) @ v,
                "divide": lambda mix, sums: mix,
            },
            {"exp": lambda s, new, old: _shares((s - new).exp())},
            {"exp": lambda s, new, old: _shares((s - new).exp()), "highest": _block_alone},
            {"mix": _mean_of_the_rest, "divide": lambda mix, sums: mix},
            {"mix": _mean_of_the_rest, "divide": lambda mix, sums: mix, "highest": _block_alone},
            {"mix": lambda mix, e, v, r, sums: (mix * r + e @ v) / sums, "divide": lambda mix, sums: mix},
            {"mix": lambda mix, e, v, r, sums: (mix * r + e @ v) / sums},
        ],
        read.FOUR_WAYS,
    ),
    ("not_divided", "Nothing is divided by the sum.", [{"divide": lambda mix, sums: mix}], read.RUNNING),
    (
        "divided_by_one_sum",
        "All rows are divided by one sum. Each row has its own.",
        [
            {"divide": lambda mix, sums: mix / sums.sum()},
            {"divide": lambda mix, sums: mix / sums.sum(-2, keepdim=True)},
        ],
        read.RUNNING,
    ),
    (
        "no_maximum",
        "No maximum is taken off: large scores overflow.",
        [
            {"exp": lambda s, new, old: s.exp(), "rescale": _none, "total": lambda high, sums, scores: sums.log()},
            {"exp": lambda s, new, old: s.exp(), "rescale": _none},
        ],
        read.FOUR_WAYS,
    ),
    (
        "softmax_in_each_block",
        "A softmax has gone over the scores already, and yours is one of its weights. The scores go in as they are.",
        [{"block": lambda s: s.softmax(-1)}, {"look": lambda s: s.softmax(-1)}],
        read.RUNNING,
    ),
    (
        "last_block_dropped",
        "A last block that is shorter is left out.",
        [{"pieces": lambda keys, block, queries: range(0, keys - block + 1, block)}],
        read.RUNNING,
    ),
    (
        "last_block_only",
        "Only the last block is left: what came before is overwritten, or multiplied by 0.",
        [
            {"rescale": lambda old, new: torch.zeros_like(new)},
            {"rescale": lambda old, new: torch.zeros_like(new), "highest": _block_alone},
            {"keep": lambda new, old: old},
        ],
        read.RUNNING,
    ),
    (
        "first_block_only",
        "Only the first block counts: your loop ends after it.",
        [{"pieces": lambda keys, block, queries: [0]}],
        read.RUNNING,
    ),
    (
        "loop_over_queries",
        "Your loop runs to the number of queries. What is cut into blocks are the keys, the columns.",
        [{"pieces": lambda keys, block, queries: range(0, queries, block)}],
        read.RUNNING,
    ),
    (
        "steps_of_another_size",
        "Your loop steps by another number of columns than a block has: some are left out, or looked at twice.",
        [
            {"pieces": lambda keys, block, queries: range(0, keys, block + 1)},
            {"pieces": lambda keys, block, queries: range(0, keys)},
            {"pieces": lambda keys, block, queries: range(keys // block)},
            {"pieces": lambda keys, block, queries: range(-(-keys // block))},
            {"pieces": lambda keys, block, queries: range(1, keys, block)},
        ],
        read.RUNNING,
    ),
)


def _rescaling(recipe: Recipe, prefix: str, totals: tuple[dict, ...] = ({},)) -> list[Mistake]:
    """Return the mistakes of the loop on a recipe: as they are, and with each of the other totals."""
    return [
        Mistake(f"{prefix}_{id}", says, *(recipe(**way | total) for way in ways for total in totals), read=where)
        for id, says, ways, where in _RESCALING
    ]


def _in_blocks(steps, note, query, key, value, block):
    scores = steps.scale(query @ key.transpose(-2, -1), query, key, value, block)
    return _pieces_of(steps, scores, value, block)


blockwise_with = Recipe(_in_blocks, **_STEPS, scale=lambda s, q, k, v, block: s / q.size(-1) ** 0.5)


def _whole(high, sums, scores):
    return scores.logsumexp(-1)


def _total(total):
    """Return attention in blocks whose second part comes from the last maximum and the running sum in another way."""
    return blockwise_with(total=lambda high, sums, scores: total(high, sums))


def _mean_of_blocks_and_total(query, key, value, block):
    scores = query @ key.mT / query.size(-1) ** 0.5
    return _mean_of_blocks(scores, value, block), scores.logsumexp(-1)


def _second_part_alone(trials):
    """The output is right everywhere, and the second part is a wrong number for each row."""
    told = [t for t in trials if not t.probe.gradient]
    if any(
        t.seen.error is not None or t.seen.parts["log_sum_exp"].shape != t.want.parts["log_sum_exp"].shape
        for t in told
    ):
        return False
    return all(close(t.seen.parts["output"], t.want.parts["output"], t.probe.tolerance) for t in told)


def _of_divided(by):
    return lambda scores, values, block: (scores / by(scores, values, block) ** 0.5).softmax(-1) @ values


_AT_ONCE = (
    "The numbers are right, but all columns of the table are looked at together. Each step may see those of one block."
)

RUNNING = (
    *_rescaling(running_with, "running"),
    Mistake(
        "running_scores_divided",
        "You divide the scores. They are given as they are.",
        _of_divided(lambda scores, values, block: values.size(-1)),
        _of_divided(lambda scores, values, block: scores.size(-1)),
        _of_divided(lambda scores, values, block: block),
        read=read.RUNNING,
    ),
    Mistake(
        "running_whole_table",
        _AT_ONCE,
        whole_table(
            (normal(13, 11, seed=711), normal(11, 5, seed=712)),
            13,
            11,
            4,
            "scores (13, 11), values (11, 5), block = 4",
        ),
    ),
    Mistake(
        "running_mean_of_blocks",
        "You take the mean of the blocks' results: they then count alike, whatever their scores.",
        _mean_of_blocks,
        read=read.FOUR_WAYS,
    ),
)


BLOCKWISE = (
    Mistake(
        "blocks_scale_missing",
        "The scores are not divided by the root of the width.",
        blockwise_with(scale=lambda s, q, k, v, block: s),
        read=read.SCALE,
    ),
    Mistake(
        "blocks_scale_other",
        "The scores are divided by another number than the root of d_k, the width of query and key.",
        blockwise_with(scale=lambda s, q, k, v, block: s / v.size(-1) ** 0.5),
        blockwise_with(scale=lambda s, q, k, v, block: s / block**0.5),
        blockwise_with(scale=lambda s, q, k, v, block: s / k.size(1) ** 0.5),
        blockwise_with(scale=lambda s, q, k, v, block: s / q.size(1) ** 0.5),
        blockwise_with(scale=lambda s, q, k, v, block: s / q.size(-1)),
        blockwise_with(scale=lambda s, q, k, v, block: s * q.size(-1) ** 0.5),
        read=read.SCALE,
    ),
    *_rescaling(blockwise_with, "blocks", ({}, {"total": _whole})),
    Mistake(
        "blocks_mean",
        "You take the mean of the blocks' results: they then count alike, whatever their scores.",
        _mean_of_blocks_and_total,
        read=read.FOUR_WAYS,
    ),
    Mistake(
        "blocks_total_is_sum",
        "The second part is the sum of the exponentials below the maximum, not the logarithm of the whole sum.",
        _total(lambda high, sums: sums),
    ),
    Mistake(
        "blocks_total_not_its_logarithm",
        "The second part is the whole sum. Asked for is its logarithm.",
        blockwise_with(total=lambda high, sums, scores: scores.exp().sum(-1)),
        _total(lambda high, sums: sums * high.exp()),
    ),
    Mistake(
        "blocks_whole_table",
        _AT_ONCE,
        whole_table(
            (normal(1, 13, 3, seed=744), normal(1, 11, 3, seed=745), normal(1, 11, 2, seed=746)),
            13,
            11,
            4,
            "query (1, 13, 3), key (1, 11, 3), value (1, 11, 2), block = 4",
        ),
    ),
    Mistake(
        "blocks_total_without_maximum",
        "In the log-sum-exp the maximum is missing, which was taken off before.",
        _total(lambda high, sums: sums.log()),
    ),
    Mistake(
        "blocks_total_is_maximum",
        "The second part is the maximum; the logarithm of the sum belongs on top.",
        _total(lambda high, sums: high),
    ),
    Mistake(
        "blocks_total_without_logarithm",
        "The maximum and the sum are joined as they are. What is added to the maximum is the logarithm of the sum.",
        _total(lambda high, sums: high + sums),
        _total(lambda high, sums: high * sums),
        _total(lambda high, sums: (high + sums).log()),
    ),
    Mistake(
        "blocks_total_maximum_taken_off",
        "In the log-sum-exp the maximum is taken off once more, or multiplied. It was taken off before and must "
        "come back.",
        _total(lambda high, sums: sums.log() - high),
        _total(lambda high, sums: sums.log() * high),
    ),
    Mistake(
        "blocks_total_other_logarithm",
        "Your logarithm has another base than the exponential, which undoes only the natural one.",
        _total(lambda high, sums: high + sums.log10()),
        _total(lambda high, sums: high + sums.log2()),
    ),
    Mistake(
        "blocks_total_keeps_an_axis",
        "The log-sum-exp has an axis of size 1 too many.",
        _total(lambda high, sums: (high + sums.log()).unsqueeze(-1)),
    ),
    Mistake(
        "blocks_total_other",
        "Your output is right, the second part is not. It is the logarithm of the whole sum, and the running sum "
        "was taken below a maximum.",
        Sign(_second_part_alone),
    ),
    Mistake(
        "blocks_weights_returned",
        "The second part is the table of weights, which should never be there.",
        lambda q, k, v, b: reference_attention(q, k, v),
    ),
)
