"""The checks of chapter 12: the running softmax, joining two results, attention in blocks, dark blocks, and a hunt."""

import math

import torch
from torch import Tensor

from mha_lib import blockwise as course
from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe
from mha_lib.checks.compare import Unfit, as_tensor, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal


def _running(scores: Tensor, values: Tensor, block: int) -> Tensor:
    return scores.softmax(-1) @ values


def _by_pieces(
    *, start=-math.inf, rescale=lambda old, new: (old - new).exp(), highest=torch.maximum, exp=lambda s, high: (s - high).exp(),
    total=lambda sums, e, r: sums * r + e.sum(-1), mixed=lambda mix, e, v, r: mix * r + e @ v, divide=lambda mix, sums: mix / sums,
    pieces=lambda n, block: range(0, n, block),
):
    """Return a running softmax of scores (T_q, T_k) over values (T_k, d) with steps replaced."""

    def run(scores, values, block):
        high = scores.new_full(scores.shape[:-1], start)
        sums, mix = torch.zeros_like(scores[:, 0]), scores.new_zeros(scores.size(0), values.size(-1))
        for i in pieces(scores.size(-1), block):
            s, v = scores[:, i : i + block], values[i : i + block]
            new = highest(high, s.amax(-1))
            r, e = rescale(high, new), exp(s, new.unsqueeze(-1))
            sums, mix = total(sums, e, r), mixed(mix, e, v, r.unsqueeze(-1) if isinstance(r, Tensor) else r)
            high = new
        return divide(mix, sums.unsqueeze(-1))

    return run


def _divided(mix, e, v, r):
    return mix * r + (e / e.sum(-1, keepdim=True)) @ v


_LATE = normal(4, 10, seed=703) + torch.linspace(-30, 30, 10)
_SCORES = [
    Probe("10 keys in blocks of 4", (normal(3, 10, seed=701, scale=3), normal(10, 5, seed=702), 4)),
    Probe("the largest scores come last", (_LATE, normal(10, 5, seed=704), 3)),
    Probe("the largest scores come first", (_LATE.flip(1), normal(10, 5, seed=704), 3)),
    Probe("very low scores", (normal(3, 9, seed=705) - 500, normal(9, 4, seed=706), 4)),
    Probe("scores of thousands", (normal(3, 9, seed=707, scale=900), normal(9, 4, seed=708), 2), tolerance=1e-3),
    Probe("one block", (normal(3, 6, seed=709), normal(6, 4, seed=710), 6)),
    Probe("blocks of one", (normal(3, 6, seed=709, scale=4), normal(6, 4, seed=710), 1)),
    Probe("gradients", (normal(3, 10, seed=701), normal(10, 5, seed=702), 4), gradient=True, tolerance=1e-4),
]

running_softmax = Exercise(
    "running_softmax",
    signature="scores values block",
    expects="one tensor (T_q, d): the values mixed by the softmax of each row of scores (T_q, T_k).",
    reference=_running,
    parts=one_tensor("output"),
    read=read.RUNNING,
    probes=_SCORES,
    mistakes=[
        Mistake("running_not_rescaled", "What was added up before is not rescaled when the maximum rises.", _by_pieces(rescale=lambda old, new: 1.0)),
        Mistake("running_sum_not_rescaled", "You rescale the mixture and not the sum.", _by_pieces(total=lambda sums, e, r: sums + e.sum(-1))),
        Mistake("running_mixture_not_rescaled", "You rescale the sum and not the mixture.", _by_pieces(mixed=lambda mix, e, v, r: mix + e @ v)),
        Mistake("running_rescaled_the_wrong_way", "You rescale by exp(new - old). What was taken below the old maximum becomes smaller, not larger.", _by_pieces(rescale=lambda old, new: torch.where(old.isinf(), 0.0, (new - old).exp()))),
        Mistake("running_maximum_from_0", "Your maximum begins at 0. Where all scores lie far below, every exponential is 0, and 0/0 is NaN.", _by_pieces(start=0.0), read=read.FOUR_WAYS),
        Mistake("running_divided_in_each_block", "You divide in each block: the blocks then count alike, whatever their scores. The division comes once, at the end.", _by_pieces(mixed=_divided), _by_pieces(mixed=_divided, divide=lambda mix, sums: mix), _by_pieces(mixed=lambda mix, e, v, r: mix + (e / e.sum(-1, keepdim=True)) @ v, divide=lambda mix, sums: mix), read=read.FOUR_WAYS),
        Mistake("running_not_divided", "Nothing is divided by the sum.", _by_pieces(divide=lambda mix, sums: mix)),
        Mistake("running_no_maximum", "No maximum is taken off: large scores overflow.", _by_pieces(start=0.0, highest=lambda old, new: old, exp=lambda s, high: s.exp(), rescale=lambda old, new: 1.0), read=read.FOUR_WAYS),
        Mistake("running_last_block_dropped", "A last block that is shorter is left out.", _by_pieces(pieces=lambda n, block: range(0, n - block + 1, block))),
        Mistake("running_last_block_only", "Only the last block is left: what came before is overwritten.", _by_pieces(rescale=lambda old, new: 0.0)),
    ],
)


def _pair(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    if isinstance(value, Tensor) or not isinstance(value, (tuple, list)) or len(value) != 2:
        raise Unfit("not_a_pair", "Asked for is the pair (output, log_sum_exp).")
    return {"output": as_tensor(value[0], "output"), "log_sum_exp": as_tensor(value[1], "log_sum_exp")}


def _result(seed: int, shift: float = 0.0, keys: int = 6) -> tuple[Tensor, Tensor]:
    """Return the output and log-sum-exp of 4 queries over some keys, with all scores shifted."""
    scores, values = normal(2, 4, keys, seed=seed, scale=2) + shift, normal(2, keys, 3, seed=seed + 1)
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


def _joined(o1, l1, o2, l2):
    return course.merge((o1, l1), (o2, l2))


def _weighing(share, total=torch.logaddexp):
    """Return a merge that counts each output by share(own log-sum-exp, the other's)."""
    return lambda o1, l1, o2, l2: (o1 * share(l1, l2).unsqueeze(-1) + o2 * share(l2, l1).unsqueeze(-1), total(l1, l2))


_sigmoid = lambda a, b: torch.sigmoid(a - b)  # noqa: E731
_EMPTY = (torch.zeros(2, 4, 3), torch.full((2, 4), -math.inf))

merge = Exercise(
    "merge",
    signature="output log_sum_exp other other_log_sum_exp",
    expects="a pair (output, log_sum_exp), as if all keys had been seen at once.",
    reference=_joined,
    parts=_pair,
    read=read.HALVES,
    probes=[
        Probe("two halves", (*_result(721), *_result(723))),
        Probe("halves of other sizes", (*_result(725, keys=2), *_result(727, keys=9))),
        Probe("scores far apart", (*_result(729, 200.0), *_result(731, -200.0))),
        Probe("scores far apart, the other way", (*_result(733, -200.0), *_result(735, 200.0))),
        Probe("one half saw no key", (*_result(737), *_EMPTY)),
    ],
    mistakes=[
        Mistake("merge_mean", "You take the mean of the two outputs. Each counts by how much of the whole sum it has seen.", _weighing(lambda a, b: torch.full_like(a, 0.5))),
        Mistake("merge_sum", "You add the two outputs up. Their shares must sum to 1.", _weighing(lambda a, b: torch.ones_like(a))),
        Mistake("merge_exp_overflows", "You take the exponential of the log-sum-exp as it is: large ones overflow.", lambda o1, l1, o2, l2: ((o1 * l1.exp().unsqueeze(-1) + o2 * l2.exp().unsqueeze(-1)) / (l1.exp() + l2.exp()).unsqueeze(-1), (l1.exp() + l2.exp()).log())),
        Mistake("merge_by_logarithms", "You weigh by the logarithms themselves. What counts are the sums, their exponentials.", _weighing(lambda a, b: a / (a + b))),
        Mistake("merge_exchanged", "Each output counts by the other's sum.", _weighing(lambda a, b: _sigmoid(b, a))),
        Mistake("merge_total_added", "Your outputs are right, and their log-sum-exps are added up. The sums add up, not their logarithms.", _weighing(_sigmoid, lambda a, b: a + b)),
        Mistake("merge_total_maximum", "Your outputs are right; the new log-sum-exp is not the larger of the two.", _weighing(_sigmoid, torch.maximum)),
        Mistake("merge_total_kept", "Your outputs are right; the log-sum-exp is that of one half.", _weighing(_sigmoid, lambda a, b: a), _weighing(_sigmoid, lambda a, b: b)),
        Mistake("merge_larger_wins", "You take the output of the half with the larger sum. Both count.", _weighing(lambda a, b: (a >= b).to(a.dtype))),
    ],
)


def _blocks(query, key, value, block):
    return course.blockwise_attention(query, key, value, block=block)


def _attend(scale=lambda q: q.size(-1) ** -0.5, **steps):
    """Return attention in blocks for (B, T, d) made of the running softmax with steps replaced; it gives the output twice right."""

    def run(query, key, value, block):
        outputs, totals = [], []
        for q, k, v in zip(query, key, value):
            scores = q @ k.mT * scale(q)
            outputs.append(_by_pieces(**steps)(scores, v, block))
            totals.append(scores.logsumexp(-1))
        return torch.stack(outputs), torch.stack(totals)

    return run


def _with_total(total):
    def run(query, key, value, block):
        scores = query @ key.mT * query.size(-1) ** -0.5
        return scores.softmax(-1) @ value, total(scores)

    return run


_QKV = (normal(2, 5, 8, seed=741), normal(2, 7, 8, seed=742), normal(2, 7, 3, seed=743))

blockwise = Exercise(
    "blockwise",
    signature="query key value block",
    expects="a pair (output, log_sum_exp): output (B, T_q, d_v), and (B, T_q), the logarithm of each row's sum of exponentials.",
    reference=_blocks,
    parts=_pair,
    read=read.RUNNING,
    probes=[
        Probe("5 queries over 7 keys in blocks of 3", (*_QKV, 3)),
        Probe("large scores", (40 * _QKV[0], 40 * _QKV[1], _QKV[2], 2), tolerance=1e-3),
        Probe("low scores", (_QKV[0] - 10, _QKV[1] + 10, _QKV[2], 3), tolerance=1e-3),
        Probe("one block", (*_QKV, 7)),
        Probe("blocks larger than the text", (*_QKV, 50)),
        Probe("gradients", (*_QKV, 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake("blocks_scale_missing", "The scores are not divided by the root of the width.", lambda q, k, v, b: ((q @ k.mT).softmax(-1) @ v, (q @ k.mT).logsumexp(-1)), read=read.SCALE),
        Mistake("blocks_not_rescaled", "What was added up before is not rescaled when the maximum rises.", _attend(rescale=lambda old, new: 1.0)),
        Mistake("blocks_maximum_from_0", "Your maximum begins at 0: where all scores lie far below, 0/0 is NaN.", _attend(start=0.0), read=read.FOUR_WAYS),
        Mistake("blocks_divided_in_each", "You divide in each block. The division comes once, at the end.", _attend(mixed=_divided), _attend(mixed=_divided, divide=lambda mix, sums: mix), read=read.FOUR_WAYS),
        Mistake("blocks_last_dropped", "A last block that is shorter is left out.", _attend(pieces=lambda n, block: range(0, n - block + 1, block))),
        Mistake("blocks_total_is_sum", "Your output is right. The second part is the sum of the exponentials below the maximum, not the logarithm of the whole sum.", _with_total(lambda s: (s - s.amax(-1, keepdim=True)).exp().sum(-1)), _with_total(lambda s: s.exp().sum(-1))),
        Mistake("blocks_total_without_maximum", "Your output is right. In the log-sum-exp the maximum is missing, which was taken off before.", _with_total(lambda s: (s - s.amax(-1, keepdim=True)).exp().sum(-1).log())),
        Mistake("blocks_total_is_maximum", "Your output is right. The second part is the maximum; the logarithm of the sum belongs on top.", _with_total(lambda s: s.amax(-1))),
        Mistake("blocks_total_keeps_an_axis", "Your output is right. The log-sum-exp has an axis of size 1 too many.", _with_total(lambda s: s.logsumexp(-1, keepdim=True))),
        Mistake("blocks_weights_returned", "The second part is the table of weights, which should never be there.", lambda q, k, v, b: reference_attention(q, k, v)),
    ],
)


def _visited(length: int, block: int) -> Tensor:
    count = -(-length // block)
    return torch.ones(count, count, dtype=torch.bool).tril()


def _is_bool(value: object) -> dict[str, Tensor]:
    refuse_none(value)
    mask = as_tensor(value, "mask")
    if mask.is_floating_point():
        raise Unfit("mask_not_bool", f"Your table holds {mask.dtype}. Asked for is True and False.")
    return {"mask": (mask != 0).double()}


blocks_to_visit = Exercise(
    "blocks_to_visit",
    signature="length block",
    expects="a table of True and False (blocks, blocks): True where a causal mask leaves anything of the block to see.",
    reference=_visited,
    parts=_is_bool,
    read=read.DARK,
    probes=[Probe(f"{n} tokens, blocks of {b}", (n, b)) for n, b in ((12, 3), (10, 4), (7, 7), (5, 8), (6, 1), (9, 2))],
    mistakes=[
        Mistake("visit_diagonal_missing", "The blocks on the diagonal are left out. Half of each can be seen.", lambda n, b: _visited(n, b).tril(-1)),
        Mistake("visit_one_too_far", "You visit one block too many in each row: it lies wholly in the future.", lambda n, b: torch.ones_like(_visited(n, b)).tril(1)),
        Mistake("visit_upper", "You visit the future: the other triangle.", lambda n, b: torch.ones_like(_visited(n, b)).triu()),
        Mistake("visit_all", "You visit every block. Those above the diagonal are dark.", lambda n, b: torch.ones_like(_visited(n, b))),
        Mistake("visit_dark", "True and False are exchanged: yours marks the dark blocks.", lambda n, b: ~_visited(n, b)),
        Mistake("visit_diagonal_only", "You visit the diagonal alone. The past can be seen whole.", lambda n, b: torch.eye(len(_visited(n, b)), dtype=torch.bool)),
        Mistake("visit_last_block_dropped", "A last block that is shorter is left out.", lambda n, b: torch.ones(n // b, n // b, dtype=torch.bool).tril()),
        Mistake("visit_one_block_more", "There is one block too many where the length comes out even.", lambda n, b: torch.ones(n // b + 1, n // b + 1, dtype=torch.bool).tril()),
        Mistake("visit_cells", "That is the mask of the cells, not of the blocks.", lambda n, b: torch.ones(n, n, dtype=torch.bool).tril()),
    ],
)


bug_blockwise = BugHunt(
    "bug_blockwise",
    signature="query key value",
    expects="(query, key, value), each (B, T, d), on which the output of the function is wrong.",
    reference=lambda query, key, value: reference_attention(query, key, value)[0],
    buggy=planted.attention_in_blocks,
    read=read.FOUR_WAYS,
    lucky=(
        Lucky("hidden_by_one_block", "Your keys fit into one block of 4: nothing is ever rescaled.", lambda query, key, value: key.size(1) <= 4),
        Lucky("hidden_by_early_maximum", "The largest score of every query comes in the first block: no later block raises the maximum.", lambda query, key, value: bool(((query @ key.mT)[..., :4].amax(-1) >= (query @ key.mT).amax(-1) - 1e-6).all())),
    ),
)
