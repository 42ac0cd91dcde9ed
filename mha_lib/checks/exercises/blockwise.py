"""The checks of chapter 12: the running softmax, joining two results, attention in blocks, dark blocks, and a hunt."""

import math

import torch
from torch import Tensor

from mha_lib import blockwise as course
from mha_lib.attention import attention as reference_attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, as_tensor, one_tensor, refuse_none
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.blockwise import BLOCKWISE, RUNNING

_LATE = normal(4, 10, seed=703) + torch.linspace(-30, 30, 10)
_SCORES = [
    Probe("10 keys in blocks of 4", (normal(3, 10, seed=701, scale=3), normal(10, 5, seed=702), 4)),
    Probe("the largest scores come last", (_LATE, normal(10, 5, seed=704), 3)),
    Probe("the largest scores come first", (_LATE.flip(1), normal(10, 5, seed=704), 3)),
    Probe("very low scores", (normal(3, 9, seed=705) - 500, normal(9, 4, seed=706), 4)),
    Probe("scores far below that", (normal(3, 9, seed=705) - 2e4, normal(9, 4, seed=706), 4), tolerance=0.02),
    Probe("scores of thousands", (normal(3, 9, seed=707, scale=900), normal(9, 4, seed=708), 2), tolerance=1e-3),
    Probe("one block", (normal(3, 6, seed=709), normal(6, 4, seed=710), 6)),
    Probe("blocks of one", (normal(3, 6, seed=709, scale=4), normal(6, 4, seed=710), 1)),
    Probe("gradients", (normal(3, 10, seed=701), normal(10, 5, seed=702), 4), gradient=True, tolerance=1e-4),
]

running_softmax = Exercise(
    "running_softmax",
    signature="scores values block",
    expects="one tensor (T_q, d): the values mixed by the softmax of each row of scores (T_q, T_k).",
    reference=lambda scores, values, block: scores.softmax(-1) @ values,
    parts=one_tensor("output"),
    read=read.RUNNING,
    probes=_SCORES,
    mistakes=RUNNING,
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


def _by_first_share(o1, l1, o2, l2, total):
    share = (l1 - total).exp().unsqueeze(-1)
    return o1 * share + o2 * (1 - share), total


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
        Mistake(
            "merge_mean",
            "You take the mean of the two outputs. Each counts by how much of the whole sum it has seen.",
            _weighing(lambda a, b: torch.full_like(a, 0.5)),
        ),
        Mistake(
            "merge_sum",
            "You add the two outputs up. Their shares must sum to 1.",
            _weighing(lambda a, b: torch.ones_like(a)),
        ),
        Mistake(
            "merge_exp_overflows",
            "An exponential of a large number overflows. What goes into it must be taken below the larger of the two, "
            "or below the whole.",
            lambda o1, l1, o2, l2: (
                (o1 * l1.exp().unsqueeze(-1) + o2 * l2.exp().unsqueeze(-1)) / (l1.exp() + l2.exp()).unsqueeze(-1),
                (l1.exp() + l2.exp()).log(),
            ),
            _weighing(_sigmoid, lambda a, b: (a.exp() + b.exp()).log()),
            _weighing(_sigmoid, lambda a, b: a + (1 + (b - a).exp()).log()),
            lambda o1, l1, o2, l2: _by_first_share(o1, l1, o2, l2, l1 + (1 + (l2 - l1).exp()).log()),
            lambda o1, l1, o2, l2: _by_first_share(o1, l1, o2, l2, (l1.exp() + l2.exp()).log()),
        ),
        Mistake(
            "merge_by_logarithms",
            "You weigh by the logarithms themselves. What counts are the sums, their exponentials.",
            _weighing(lambda a, b: a / (a + b)),
            _weighing(lambda a, b: a / torch.logaddexp(a, b)),
            _weighing(lambda a, b: a - torch.logaddexp(a, b)),
            _weighing(lambda a, b: a),
        ),
        Mistake("merge_exchanged", "Each output counts by the other's sum.", _weighing(lambda a, b: _sigmoid(b, a))),
        Mistake(
            "merge_one_share",
            "Both outputs count by the same share. Each has its own.",
            lambda o1, l1, o2, l2: ((o1 + o2) * _sigmoid(l1, l2).unsqueeze(-1), torch.logaddexp(l1, l2)),
            lambda o1, l1, o2, l2: ((o1 + o2) * _sigmoid(l2, l1).unsqueeze(-1), torch.logaddexp(l1, l2)),
        ),
        Mistake(
            "merge_shares_upside_down",
            "Your shares are larger than 1: the difference in the exponential stands the wrong way round.",
            _weighing(lambda a, b: (torch.logaddexp(a, b) - a).exp()),
        ),
        Mistake(
            "merge_not_divided",
            "Your shares do not sum to 1: taken below the maximum, they must still be divided by their sum.",
            _weighing(lambda a, b: (a - torch.maximum(a, b)).exp()),
        ),
        Mistake(
            "merge_shares_of_other_axis",
            "Your softmax shares out among sentences or queries. The shares are those of the two results.",
            *(_weighing(lambda a, b, axis=axis: a.softmax(axis)) for axis in (0, 1)),
        ),
        Mistake(
            "merge_laid_end_to_end",
            "You lay the two results end to end. They belong to the same queries, and are mixed.",
            *(
                lambda o1, l1, o2, l2, axis=axis: (torch.cat((o1, o2), axis), torch.cat((l1, l2), min(axis, 1)))
                for axis in (0, 1, 2)
            ),
        ),
        Mistake(
            "merge_total_added",
            "Your outputs are right, and their log-sum-exps are added up. The sums add up, not their logarithms.",
            _weighing(_sigmoid, lambda a, b: a + b),
        ),
        Mistake(
            "merge_total_maximum",
            "Your outputs are right; the new log-sum-exp is not the larger of the two.",
            _weighing(_sigmoid, torch.maximum),
        ),
        Mistake(
            "merge_total_without_maximum",
            "Your outputs are right; in the log-sum-exp the maximum is missing, which was taken off before.",
            _weighing(_sigmoid, lambda a, b: torch.logaddexp(a, b) - torch.maximum(a, b)),
        ),
        Mistake(
            "merge_total_kept",
            "Your outputs are right; the log-sum-exp is that of one half.",
            _weighing(_sigmoid, lambda a, b: a),
            _weighing(_sigmoid, lambda a, b: b),
        ),
        Mistake(
            "merge_larger_wins",
            "You take the output of the half with the larger sum. Both count.",
            _weighing(lambda a, b: (a >= b).to(a.dtype)),
            _weighing(lambda a, b: (a >= b).to(a.dtype), torch.maximum),
        ),
    ],
)


def _blocks(query, key, value, block):
    return course.blockwise_attention(query, key, value, block=block)


_QKV = (normal(2, 5, 8, seed=741), normal(2, 7, 8, seed=742), normal(2, 7, 3, seed=743))

blockwise = Exercise(
    "blockwise",
    signature="query key value block",
    expects="a pair (output, log_sum_exp): output (B, T_q, d_v), and (B, T_q), the logarithm of each row's sum of "
    "exponentials.",
    reference=_blocks,
    parts=_pair,
    read=read.RUNNING,
    probes=[
        Probe("5 queries over 7 keys in blocks of 3", (*_QKV, 3)),
        Probe("large scores", (40 * _QKV[0], 40 * _QKV[1], _QKV[2], 2), tolerance=1e-3),
        Probe("low scores", (_QKV[0] - 10, _QKV[1] + 10, _QKV[2], 3), tolerance=1e-3),
        Probe("scores far below that", (_QKV[0] - 100, _QKV[1] + 100, _QKV[2], 3), tolerance=0.02),
        Probe("one block", (*_QKV, 7)),
        Probe("blocks larger than the text", (*_QKV, 50)),
        Probe("gradients", (*_QKV, 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=BLOCKWISE,
)


def _visited(length: int, block: int) -> Tensor:
    count = -(-length // block)
    return torch.ones(count, count, dtype=torch.bool).tril()


def _seen_whole(length: int, block: int) -> Tensor:
    mask = torch.ones(length, length).tril()
    return torch.stack([torch.stack([cell.all() for cell in row.split(block, 1)]) for row in mask.split(block, 0)])


def _filled_up(length: int, block: int) -> Tensor:
    """Return where all of a block is seen, the last one filled up with cells that nobody sees."""
    count = -(-length // block)
    mask = torch.zeros(count * block, count * block)
    mask[:length, :length] = torch.ones(length, length).tril()
    return mask.bool().view(count, block, count, block).all(3).all(1)


def _another_triangle(trials) -> bool:
    masks = [t.seen.parts.get("mask") for t in trials]
    if any(m is None or m.dim() != 2 or m.size(0) != m.size(1) for m in masks):
        return False
    return all(torch.equal(m, torch.ones_like(m).tril()) for m in masks)


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
        Mistake(
            "visit_diagonal_missing",
            "The blocks on the diagonal are left out. Half of each can be seen.",
            lambda n, b: _visited(n, b).tril(-1),
        ),
        Mistake(
            "visit_one_too_far",
            "You visit blocks that lie wholly in the future: your triangle reaches beyond the diagonal.",
            lambda n, b: torch.ones_like(_visited(n, b)).tril(1),
            lambda n, b: torch.ones_like(_visited(n, b)).tril(b),
            lambda n, b: torch.ones_like(_visited(n, b)).tril(b - 1),
        ),
        Mistake(
            "visit_upper",
            "You visit the future: the other triangle.",
            lambda n, b: torch.ones_like(_visited(n, b)).triu(),
        ),
        Mistake(
            "visit_all",
            "You visit every block. Those above the diagonal are dark.",
            lambda n, b: torch.ones_like(_visited(n, b)),
        ),
        Mistake(
            "visit_dark", "True and False are exchanged: yours marks the dark blocks.", lambda n, b: ~_visited(n, b)
        ),
        Mistake(
            "visit_diagonal_only",
            "You visit the diagonal alone. The past can be seen whole.",
            lambda n, b: torch.eye(len(_visited(n, b)), dtype=torch.bool),
        ),
        Mistake(
            "visit_last_block_dropped",
            "A last block that is shorter is left out.",
            lambda n, b: torch.ones(n // b, n // b, dtype=torch.bool).tril(),
        ),
        Mistake(
            "visit_one_block_more",
            "There is one block too many where the length comes out even.",
            lambda n, b: torch.ones(n // b + 1, n // b + 1, dtype=torch.bool).tril(),
        ),
        Mistake(
            "visit_cells",
            "That is a mask of the cells, a row for every token. Asked for is a row for every block.",
            lambda n, b: torch.ones(n, n, dtype=torch.bool).tril(),
            lambda n, b: _visited(n, b).repeat_interleave(b, 0).repeat_interleave(b, 1),
            lambda n, b: _visited(n, b).repeat_interleave(b, 0).repeat_interleave(b, 1)[:n, :n],
        ),
        Mistake(
            "visit_wholly_seen",
            "You visit the blocks that are seen whole. A block counts if anything of it can be seen.",
            _seen_whole,
            _filled_up,
        ),
        Mistake(
            "visit_other_count",
            "The triangle is right, the number of blocks is not: it is length / block, rounded up.",
            Sign(_another_triangle),
        ),
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
        Lucky(
            "shows_other_axes",
            "Each of the three has the axes (B, T, d). Yours have others.",
            lambda query, key, value: any(x.dim() != 3 for x in (query, key, value)),
        ),
        Lucky(
            "hidden_by_zeros",
            "All values are 0 here, and every mixture of them is 0.",
            lambda query, key, value: not bool(value.any()),
        ),
        Lucky(
            "hidden_by_one_block",
            "Your keys fit into one block of 4: nothing is ever rescaled.",
            lambda query, key, value: key.size(1) <= 4,
        ),
        Lucky(
            "hidden_by_early_maximum",
            "The largest score of every query comes in the first block: no later block raises the maximum.",
            lambda query, key, value: bool(
                ((query @ key.mT)[..., :4].amax(-1) >= (query @ key.mT).amax(-1) - 1e-6).all()
            ),
        ),
    ),
)
