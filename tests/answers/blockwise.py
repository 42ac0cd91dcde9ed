"""Answers to the exercises of checks/exercises/blockwise.py."""

from tests.answers import Answer, edit

RUN = '''
def running_softmax(scores, values, block):
    high = torch.full((scores.size(0),), -torch.inf)
    total, mixed = torch.zeros(scores.size(0)), torch.zeros(scores.size(0), values.size(1))
    for i in range(0, scores.size(1), block):
        s = scores[:, i : i + block]
        new = torch.maximum(high, s.amax(1))
        rescale = (high - new).exp()
        exp = (s - new[:, None]).exp()
        total = total * rescale + exp.sum(1)
        mixed = mixed * rescale[:, None] + exp @ values[i : i + block]
        high = new
    return mixed / total[:, None]
'''
START = "high = torch.full((scores.size(0),), -torch.inf)"
LOOP = "for i in range(0, scores.size(1), block):"
NEW = "new = torch.maximum(high, s.amax(1))"
RESCALE = "rescale = (high - new).exp()"
EXP = "exp = (s - new[:, None]).exp()"
TOTAL = "total = total * rescale + exp.sum(1)"
MIXED = "mixed = mixed * rescale[:, None] + exp @ values[i : i + block]"
DIVIDE = "return mixed / total[:, None]"

MERGE = '''
def merge(output, log_sum_exp, other, other_log_sum_exp):
    total = torch.logaddexp(log_sum_exp, other_log_sum_exp)
    share = (log_sum_exp - total).exp()[..., None]
    other_share = (other_log_sum_exp - total).exp()[..., None]
    return output * share + other * other_share, total
'''
SUM = "total = torch.logaddexp(log_sum_exp, other_log_sum_exp)"
SHARE = "share = (log_sum_exp - total).exp()[..., None]"
OTHER = "other_share = (other_log_sum_exp - total).exp()[..., None]"
GIVE = "return output * share + other * other_share, total"

BLOCKS = '''
def blockwise(query, key, value, block):
    B, T, d = query.shape
    high = torch.full((B, T), -torch.inf)
    total, mixed = torch.zeros(B, T), torch.zeros(B, T, value.size(-1))
    for j in range(0, key.size(1), block):
        s = query @ key[:, j : j + block].mT / d ** 0.5
        new = torch.maximum(high, s.amax(-1))
        rescale = (high - new).exp()
        exp = (s - new[..., None]).exp()
        total = total * rescale + exp.sum(-1)
        mixed = mixed * rescale[..., None] + exp @ value[:, j : j + block]
        high = new
    return mixed / total[..., None], high + total.log()
'''
B_SCORES = "s = query @ key[:, j : j + block].mT / d ** 0.5"
B_LOOP = "for j in range(0, key.size(1), block):"
B_RESCALE = "rescale = (high - new).exp()"
B_MIXED = "mixed = mixed * rescale[..., None] + exp @ value[:, j : j + block]"
B_GIVE = "return mixed / total[..., None], high + total.log()"


def _visit(line):
    return f"def blocks_to_visit(length, block):\n    n = (length + block - 1) // block\n    i = torch.arange(n)\n    return {line}\n"


WRONG = (
    [
        Answer("running_softmax", "running_softmax", edit(RUN, *changes), id)
        for id, changes in [
            ("running_not_rescaled", [f"{RESCALE} -> rescale = torch.ones_like(high)"]),
            ("running_sum_not_rescaled", [f"{TOTAL} -> total = total + exp.sum(1)"]),
            ("running_mixture_not_rescaled", [f"{MIXED} -> mixed = mixed + exp @ values[i : i + block]"]),
            ("running_maximum_from_0", [f"{START} -> high = torch.zeros(scores.size(0))"]),
            ("running_divided_in_each_block", [f"{MIXED} -> mixed = mixed * rescale[:, None] + exp / exp.sum(1, keepdim=True) @ values[i : i + block]"]),
            ("running_not_divided", [f"{DIVIDE} -> return mixed"]),
            ("running_no_maximum", [f"{EXP} -> exp = s.exp()", f"{RESCALE} -> rescale = torch.ones_like(high)"]),
            ("running_last_block_dropped", [f"{LOOP} -> for i in range(0, scores.size(1) - block + 1, block):"]),
            ("running_block_rescaled_too", [f"{TOTAL} -> total = (total + exp.sum(1)) * rescale"]),
            ("running_rescaled_the_wrong_way", [f"{RESCALE} -> rescale = (new - high).exp()"]),
            ("running_maximum_from_0", [f"{START} -> high = torch.full((scores.size(0),), -1e4)"]),
            ("running_maximum_of_the_block", [f"{NEW} -> new = s.amax(1)"]),
            ("running_maximum_of_all_rows", [f"{NEW} -> new = torch.maximum(high, s.max())"]),
            ("running_below_the_old_maximum", [f"{EXP} -> exp = (s - high[:, None]).exp()"]),
            ("running_divided_by_one_sum", [f"{DIVIDE} -> return mixed / total.sum()"]),
            ("running_softmax_in_each_block", ["s = scores[:, i : i + block] -> s = scores[:, i : i + block].softmax(1)"]),
            ("running_first_block_only", [f"    {DIVIDE} ->         {DIVIDE}"]),
            ("running_loop_over_queries", [f"{LOOP} -> for i in range(0, scores.size(0), block):"]),
            ("running_steps_of_another_size", [f"{LOOP} -> for i in range(0, scores.size(1), block + 1):"]),
            ("running_mean_of_blocks", [f"{DIVIDE} -> parts = [s.softmax(1) @ v for s, v in zip(scores.split(block, 1), values.split(block))]; return sum(parts) / len(parts)"]),
            ("running_divided_in_each_block", [f"{MIXED} -> mixed = (mixed * rescale[:, None] + exp @ values[i : i + block]) / total[:, None]", f"{DIVIDE} -> return mixed"]),
            ("running_last_block_only", ["    high = new -> "]),
            ("running_divided_in_each_block", [f"{EXP} -> exp = (s - new[:, None]).exp(); exp = exp / exp.sum(1, keepdim=True)"]),
            ("running_scores_divided", ["s = scores[:, i : i + block] -> s = scores[:, i : i + block] / values.size(1) ** 0.5"]),
            ("running_whole_table", [f"{DIVIDE} -> return scores.softmax(1) @ values"]),
            ("running_whole_table", [f"{NEW} -> new = scores.max(1).values"]),
            ("running_last_block_only", [f"{TOTAL} -> total = exp.sum(1)", f"{MIXED} -> mixed = exp @ values[i : i + block]"]),
        ]
    ]
    + [
        Answer("merge", "merge", edit(MERGE, *changes), id)
        for id, changes in [
            ("merge_mean", [f"{GIVE} -> return (output + other) / 2, total"]),
            ("merge_sum", [f"{GIVE} -> return output + other, total"]),
            ("merge_exp_overflows", [f"{SUM} -> a, b = log_sum_exp.exp(), other_log_sum_exp.exp(); total = (a + b).log()", f"{SHARE} -> share = (a / (a + b))[..., None]", f"{OTHER} -> other_share = (b / (a + b))[..., None]"]),
            ("merge_by_logarithms", [f"{SHARE} -> share = (log_sum_exp / (log_sum_exp + other_log_sum_exp))[..., None]", f"{OTHER} -> other_share = (other_log_sum_exp / (log_sum_exp + other_log_sum_exp))[..., None]"]),
            ("merge_exp_overflows", [f"{SUM} -> total = (log_sum_exp.exp() + other_log_sum_exp.exp()).log()", f"{SHARE} -> share = torch.sigmoid(log_sum_exp - other_log_sum_exp)[..., None]", f"{OTHER} -> other_share = 1 - share"]),
            ("merge_exp_overflows", [f"{SUM} -> total = log_sum_exp + (1 + (other_log_sum_exp - log_sum_exp).exp()).log()", f"{OTHER} -> other_share = 1 - share"]),
            ("merge_by_logarithms", [f"{SHARE} -> share = (log_sum_exp - total)[..., None]", f"{OTHER} -> other_share = (other_log_sum_exp - total)[..., None]"]),
            ("merge_one_share", [f"{OTHER} -> other_share = share"]),
            ("merge_shares_upside_down", [f"{SHARE} -> share = (total - log_sum_exp).exp()[..., None]", f"{OTHER} -> other_share = (total - other_log_sum_exp).exp()[..., None]"]),
            ("merge_not_divided", [f"{SHARE} -> high = torch.maximum(log_sum_exp, other_log_sum_exp); share = (log_sum_exp - high).exp()[..., None]", f"{OTHER} -> other_share = (other_log_sum_exp - high).exp()[..., None]"]),
            ("merge_shares_of_other_axis", [f"{SHARE} -> share = log_sum_exp.softmax(1)[..., None]", f"{OTHER} -> other_share = other_log_sum_exp.softmax(1)[..., None]"]),
            ("merge_laid_end_to_end", [f"{GIVE} -> return torch.cat([output, other], 1), torch.cat([log_sum_exp, other_log_sum_exp], 1)"]),
            ("merge_total_without_maximum", [f"{GIVE} -> return output * share + other * other_share, total - torch.maximum(log_sum_exp, other_log_sum_exp)"]),
            ("merge_exchanged", [f"{GIVE} -> return output * other_share + other * share, total"]),
            ("merge_total_added", [f"{GIVE} -> return output * share + other * other_share, log_sum_exp + other_log_sum_exp"]),
            ("merge_total_maximum", [f"{GIVE} -> return output * share + other * other_share, torch.maximum(log_sum_exp, other_log_sum_exp)"]),
            ("merge_total_kept", [f"{GIVE} -> return output * share + other * other_share, log_sum_exp"]),
            ("not_a_pair", [f"{GIVE} -> return output * share + other * other_share"]),
        ]
    ]
    + [
        Answer("blockwise", "blockwise", edit(BLOCKS, *changes), id)
        for id, changes in [
            ("blocks_total_not_its_logarithm", [f"{B_GIVE} -> return mixed / total[..., None], total * high.exp()"]),
            ("blocks_whole_table", [f"{B_GIVE} -> s = query @ key.mT / d ** 0.5; return s.softmax(-1) @ value, s.logsumexp(-1)"]),
            ("blocks_scale_missing", [f"{B_SCORES} -> s = query @ key[:, j : j + block].mT"]),
            ("blocks_not_rescaled", [f"{B_RESCALE} -> rescale = torch.ones_like(high)", f"{B_GIVE} -> s = query @ key.mT / d ** 0.5; return mixed / total[..., None], s.logsumexp(-1)"]),
            ("blocks_divided_in_each_block", [f"{B_MIXED} -> mixed = mixed * rescale[..., None] + exp / exp.sum(-1, keepdim=True) @ value[:, j : j + block]"]),
            ("blocks_maximum_from_0", ["high = torch.full((B, T), -torch.inf) -> high = torch.zeros(B, T)", f"{B_GIVE} -> s = query @ key.mT / d ** 0.5; return mixed / total[..., None], s.logsumexp(-1)"]),
            ("blocks_last_block_dropped", [f"{B_LOOP} -> for j in range(0, key.size(1) - block + 1, block):", f"{B_GIVE} -> s = query @ key.mT / d ** 0.5; return mixed / total[..., None], s.logsumexp(-1)"]),
            ("blocks_scale_other", [f"{B_SCORES} -> s = query @ key[:, j : j + block].mT / block ** 0.5"]),
            ("blocks_sum_not_rescaled", ["total = total * rescale + exp.sum(-1) -> total = total + exp.sum(-1)"]),
            ("blocks_mixture_not_rescaled", [f"{B_MIXED} -> mixed = mixed + exp @ value[:, j : j + block]"]),
            ("blocks_rescaled_the_wrong_way", [f"{B_RESCALE} -> rescale = (new - high).exp()"]),
            ("blocks_block_rescaled_too", ["total = total * rescale + exp.sum(-1) -> total = (total + exp.sum(-1)) * rescale"]),
            ("blocks_maximum_of_the_block", ["new = torch.maximum(high, s.amax(-1)) -> new = s.amax(-1)"]),
            ("blocks_maximum_of_all_rows", ["new = torch.maximum(high, s.amax(-1)) -> new = torch.maximum(high, s.max())"]),
            ("blocks_below_the_old_maximum", ["exp = (s - new[..., None]).exp() -> exp = (s - high[..., None]).exp()"]),
            ("blocks_not_divided", [f"{B_GIVE} -> return mixed, high + total.log()"]),
            ("blocks_divided_by_one_sum", [f"{B_GIVE} -> return mixed / total.sum(), high + total.log()"]),
            ("blocks_no_maximum", ["exp = (s - new[..., None]).exp() -> exp = s.exp()", f"{B_RESCALE} -> rescale = torch.ones_like(high)", f"{B_GIVE} -> return mixed / total[..., None], total.log()"]),
            ("blocks_softmax_in_each_block", [f"{B_SCORES} -> s = (query @ key[:, j : j + block].mT / d ** 0.5).softmax(-1)"]),
            ("blocks_last_block_only", ["    high = new -> "]),
            ("blocks_first_block_only", [f"    {B_GIVE} ->         {B_GIVE}"]),
            ("blocks_loop_over_queries", [f"{B_LOOP} -> for j in range(0, T, block):"]),
            ("blocks_steps_of_another_size", [f"{B_LOOP} -> for j in range(0, key.size(1), block + 1):"]),
            ("blocks_mean", [f"{B_GIVE} -> s = query @ key.mT / d ** 0.5; parts = [a.softmax(-1) @ v for a, v in zip(s.split(block, -1), value.split(block, 1))]; return sum(parts) / len(parts), s.logsumexp(-1)"]),
            ("blocks_total_without_logarithm", [f"{B_GIVE} -> return mixed / total[..., None], high + total"]),
            ("blocks_total_maximum_taken_off", [f"{B_GIVE} -> return mixed / total[..., None], total.log() - high"]),
            ("blocks_total_other_logarithm", [f"{B_GIVE} -> return mixed / total[..., None], high + total.log2()"]),
            ("blocks_total_other", [f"{B_GIVE} -> return mixed / total[..., None], high + total.log1p()"]),
            ("blocks_scale_missing+blocks_total_is_sum", [f"{B_SCORES} -> s = query @ key[:, j : j + block].mT", f"{B_GIVE} -> return mixed / total[..., None], total"]),
            ("blocks_total_is_sum", [f"{B_GIVE} -> return mixed / total[..., None], total"]),
            ("blocks_total_without_maximum", [f"{B_GIVE} -> return mixed / total[..., None], total.log()"]),
            ("blocks_total_is_maximum", [f"{B_GIVE} -> return mixed / total[..., None], high"]),
            ("blocks_total_keeps_an_axis", [f"{B_GIVE} -> return mixed / total[..., None], (high + total.log())[..., None]"]),
            ("blocks_weights_returned", [f"{B_GIVE} -> return mixed / total[..., None], (query @ key.mT / d ** 0.5).softmax(-1)"]),
            ("not_a_pair", [f"{B_GIVE} -> return mixed / total[..., None]"]),
        ]
    ]
    + [
        Answer("blocks_to_visit", "blocks_to_visit", _visit(line), id)
        for id, line in [
            ("visit_diagonal_missing", "i[:, None] > i"),
            ("visit_one_too_far", "i[:, None] + 1 >= i"),
            ("visit_upper", "i[:, None] <= i"),
            ("visit_all", "torch.ones(n, n, dtype=torch.bool)"),
            ("visit_dark", "i[:, None] < i"),
            ("visit_diagonal_only", "i[:, None] == i"),
            ("visit_last_block_dropped", "torch.ones(length // block, length // block, dtype=torch.bool).tril()"),
            ("visit_one_block_more", "torch.ones(length // block + 1, length // block + 1, dtype=torch.bool).tril()"),
            ("visit_one_too_far", "torch.ones(n, n).tril(block).bool()"),
            ("visit_wholly_seen", "F.pad(torch.ones(length, length).tril(), (0, n * block - length) * 2).bool().view(n, block, n, block).all(3).all(1)"),
            ("visit_wholly_seen", "torch.stack([torch.stack([c.all() for c in r.split(block, 1)]) for r in torch.ones(length, length).tril().split(block)])"),
            ("visit_other_count", "torch.ones(block, block).tril().bool()"),
            ("sizes_are_not_numbers", "torch.ones(length / block, length / block).tril().bool()"),
            ("visit_cells", "torch.ones(length, length, dtype=torch.bool).tril()"),
        ]
    ]
)

RIGHT = (
    [
        Answer("running_softmax", "running_softmax", edit(RUN, *changes))
        for changes in (
            [],
            [f"{NEW} -> new = torch.stack([high, s.amax(1)]).amax(0)"],
            [f"{DIVIDE} -> return (mixed.T / total).T"],
            [f"{START} -> high = torch.full((scores.size(0),), -1e30)"],
            [f"{LOOP} -> for i in reversed(range(0, scores.size(1), block)):"],
        )
    ]
    + [
        Answer("merge", "merge", edit(MERGE, *changes))
        for changes in (
            [],
            [f"{SUM} -> total = torch.stack([log_sum_exp, other_log_sum_exp]).logsumexp(0)"],
            [f"{SHARE} -> share = torch.sigmoid(log_sum_exp - other_log_sum_exp)[..., None]", f"{OTHER} -> other_share = 1 - share"],
            [f"{GIVE} -> return [output * share + other * other_share, total]"],
            [f"{GIVE} -> return torch.lerp(other, output, share), total"],
        )
    ]
    + [
        Answer("blockwise", "blockwise", edit(BLOCKS, *changes))
        for changes in (
            [],
            [f"{B_SCORES} -> s = torch.einsum('bqd,bkd->bqk', query, key[:, j : j + block]) * d ** -0.5"],
            [f"{B_GIVE} -> return [mixed / total.unsqueeze(-1), total.log() + high]"],
            ["high = torch.full((B, T), -torch.inf) -> high = query.new_full((B, T), -1e30)"],
            [f"{B_LOOP} -> for j in reversed(range(0, key.size(1), block)):"],
        )
    ]
    + [
        Answer("blocks_to_visit", "blocks_to_visit", _visit(line))
        for line in ("i[:, None] >= i", "torch.ones(n, n).tril().bool()", "~torch.ones(n, n, dtype=torch.bool).triu(1)", "torch.ones(n, n, dtype=torch.bool).tril()", "torch.stack([i <= row for row in range(n)])")
    ]
    + [
        Answer(  # every block a softmax of its own, joined by its share
            "running_softmax",
            "running_softmax",
            "def running_softmax(scores, values, block):\n    mixed, total = None, None\n    for s, v in zip(scores.split(block, 1), values.split(block, 0)):\n"
            "        m, t = s.softmax(1) @ v, s.logsumexp(1, keepdim=True)\n        new = t if total is None else torch.logaddexp(total, t)\n"
            "        mixed = m if total is None else mixed * (total - new).exp() + m * (t - new).exp()\n        total = new\n    return mixed\n",
        ),
        Answer(
            "blockwise",
            "blockwise",
            "def blockwise(query, key, value, block):\n    pairs = []\n    for k, v in zip(key.split(block, 1), value.split(block, 1)):\n"
            "        s = torch.einsum('bqd,bkd->bqk', query, k) * query.shape[-1] ** -0.5\n        pairs.append((s.softmax(-1) @ v, s.logsumexp(-1)))\n"
            "    outputs, totals = (torch.stack(x) for x in zip(*pairs))\n    return (outputs * totals.softmax(0)[..., None]).sum(0), totals.logsumexp(0)\n",
        ),
    ]
)
