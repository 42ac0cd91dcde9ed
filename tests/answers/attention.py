"""Answers to the exercises about attention of chapters 1, 2, 3 and 5."""

from tests.answers import Answer, edit

BASE = '''
def attention(query, key, value, mask=None, dropout=None):
    scores = query @ key.transpose(-2, -1)
    scores = scores / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    used = weights if dropout is None else dropout(weights)
    output = used @ value
    return output, weights
'''
SCORES = "scores = query @ key.transpose(-2, -1)"
SCALE = "scores = scores / math.sqrt(query.size(-1))"
FILL = 'scores = scores.masked_fill(mask == 0, float("-inf"))'
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
USED = "used = weights if dropout is None else dropout(weights)"
MIX = "output = used @ value"
GIVE = "return output, weights"


def _by_hand(shift, total="e.sum(dim=-1, keepdim=True)"):
    return f"{SOFTMAX} -> e = torch.exp(scores{shift}); weights = e / {total}"


STEPS = [
    ("att_exp_plus_epsilon", [_by_hand(" - scores.amax(-1, keepdim=True)", "(e.sum(dim=-1, keepdim=True) + 1)")]),
    ("att_exp_plus_epsilon", [_by_hand(" - scores.amax(-1, keepdim=True)", "(e.sum(dim=-1, keepdim=True) + 0.1)")]),
    ("att_weights_times_key", [f"{MIX} -> output = used @ key"]),
    ("att_weights_times_query", [f"{MIX} -> output = used @ query"]),
    ("att_returns_scores_as_weights", [f"{GIVE} -> return output, scores"]),
    ("att_returns_log_weights", [f"{GIVE} -> return output, weights.log()"]),
    ("att_softmax_over_queries", [f"{SOFTMAX} -> weights = scores.softmax(-2)"]),
    ("att_softmax_over_queries", [f"{SOFTMAX} -> weights = F.softmax(scores.transpose(-1, -2), -1).transpose(-1, -2)"]),
    ("att_softmax_dim2_hardcoded", [f"{SOFTMAX} -> weights = nn.Softmax(dim=2)(scores)"]),
    ("att_softmax_dim1_hardcoded", [f"{SOFTMAX} -> weights = F.softmax(scores, dim=1)"]),
    ("att_softmax_over_batch", [f"{SOFTMAX} -> weights = F.softmax(scores, dim=0)"]),
    ("att_query_key_swapped", [f"{SCORES} -> scores = torch.matmul(key, query.transpose(-2, -1))"]),
    ("att_query_key_swapped", [f'{SCORES} -> scores = torch.einsum("...kd,...qd->...kq", key, query)']),
    ("att_weights_transposed", [f"{MIX} -> output = used.transpose(-2, -1) @ value"]),
    ("att_normalise_by_sum", [f"{SOFTMAX} -> weights = scores / torch.sum(scores, -1, keepdim=True)"]),
    ("att_normalise_by_sum", [f"{SOFTMAX} -> weights = F.normalize(scores, p=1, dim=-1)"]),
    ("att_no_softmax", [f"{SOFTMAX} -> weights = scores"]),
    ("att_log_softmax", [f"{SOFTMAX} -> weights = F.log_softmax(scores, dim=-1)"]),
    ("att_softmax_twice", [f"{MIX} -> output = F.softmax(used, dim=-1) @ value"]),
    ("att_softmax_twice", [f"{SOFTMAX} -> weights = scores.softmax(-1).softmax(-1)"]),
    ("att_sigmoid", [f"{SOFTMAX} -> weights = torch.sigmoid(scores)"]),
    ("att_hard_max", [f"{SOFTMAX} -> weights = F.one_hot(scores.argmax(-1), scores.size(-1)).float()"]),
    ("att_negated_scores", [f"{SCALE} -> scores = -scores / math.sqrt(query.size(-1))"]),
    ("att_global_max_underflow", [_by_hand(" - torch.max(scores)")]),
    ("att_global_max_underflow", [_by_hand(" - scores.flatten().max().item()")]),
    ("att_naive_exp_overflow", [_by_hand("")]),
    ("att_naive_exp_overflow", [f"{SOFTMAX} -> weights = math.e ** scores / (math.e ** scores).sum(-1, keepdim=True)"]),
    ("att_softmax_sum_without_keepdim", [_by_hand(" - scores.amax(-1, keepdim=True)", "e.sum(-1)")]),
    ("att_softmax_sum_without_keepdim", [_by_hand("", "torch.sum(e, dim=-1)")]),
    ("att_softmax_whole_tensor", [_by_hand(" - scores.max()", "e.sum()")]),
    ("att_softmax_whole_tensor", [f"{SOFTMAX} -> weights = scores.flatten().softmax(0).reshape(scores.shape)"]),
    ("att_scores_from_value", [f"{SCORES} -> scores = query @ value.transpose(-2, -1)"]),
    ("att_query_times_query", [f"{SCORES} -> scores = query @ query.transpose(-2, -1)"]),
    ("att_key_times_key", [f"{SCORES} -> scores = key @ key.transpose(-2, -1)"]),
    ("att_detached", [f"{SCORES} -> scores = (query @ key.transpose(-2, -1)).detach()"]),
    ("att_detached", [f"{SOFTMAX} -> weights = torch.tensor(scores.softmax(-1).tolist())"]),
    ("att_detached", [f"{MIX} -> output = torch.from_numpy(used.detach().numpy() @ value.detach().numpy())"]),
    ("att_returns_weights_as_output", [f"{GIVE} -> return weights, weights"]),
    ("att_return_order", [f"{GIVE} -> return weights, output"]),
    ("att_transpose_1_2_hardcoded", [f"{SCORES} -> scores = torch.matmul(query, torch.transpose(key, 1, 2))"]),
    ("att_transpose_all_axes", [f"{SCORES} -> scores = query @ key.T"]),
    ("att_transpose_all_axes", [f"{SCORES} -> scores = query @ torch.transpose(key, 0, 1)"]),
    ("att_key_reshaped", [f"{SCORES} -> scores = query @ key.reshape(*key.shape[:-2], key.size(-1), key.size(-2))"]),
    ("att_key_not_transposed", [f"{SCORES} -> scores = query @ key"]),
    ("att_elementwise", [f"{SCORES} -> scores = query * key"]),
    ("att_inplace_scaling", [f"{SCALE} -> pass", f"{SCORES} -> query.div_(math.sqrt(query.size(-1))); scores = query @ key.transpose(-2, -1)"]),
    ("att_inplace_scaling", [f"{SCALE} -> pass", f"{SCORES} -> key *= key.size(-1) ** -0.5; scores = query @ key.transpose(-2, -1)"]),
    ("att_changes_value", [f"{MIX} -> output = used @ value; value.zero_()"]),
    ("att_sums_values", [f"{MIX} -> output = value.mean(-2, keepdim=True).expand(*query.shape[:-1], -1)"]),
    ("att_cosine", [f"{SCORES} -> scores = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)"]),
]

SCALES = [
    ("scale_missing", [f"{SCALE} -> pass"]),
    ("scale_missing", [f"{SCALE} -> scores / math.sqrt(query.size(-1))"]),
    ("scale_without_sqrt", [f"{SCALE} -> scores = scores / query.size(-1)"]),
    ("scale_multiplies", [f"{SCALE} -> scores = scores * query.size(-1) ** 0.5"]),
    ("scale_multiplies_without_sqrt", [f"{SCALE} -> scores = scores * key.size(-1)"]),
    ("scale_applied_to_output", [f"{SCALE} -> pass", f"{MIX} -> output = used @ value / math.sqrt(query.size(-1))"]),
    ("scale_after_softmax", [f"{SCALE} -> pass", f"{SOFTMAX} -> weights = torch.softmax(scores, dim=-1) / math.sqrt(query.size(-1))"]),
    ("scale_twice", [f"{SCORES} -> scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1) / math.sqrt(query.size(-1))"]),
    ("scale_quarter_once", [f"{SCALE} -> scores = scores / query.size(-1) ** (1 / 4)"]),
    ("scale_quarter_once", [f"{SCALE} -> scores = scores / math.sqrt(math.sqrt(query.size(-1)))"]),
    ("scale_hardcoded_8", [f"{SCALE} -> scores = scores / 8"]),
    ("scale_hardcoded_8", [f"{SCALE} -> scores = scores / math.sqrt(64)"]),
    ("scale_hardcoded_8", [f"{SCALE} -> scores = scores / math.sqrt(512)"]),
    ("scale_by_dim1", [f"{SCALE} -> scores = scores / math.sqrt(key.shape[1])"]),
    ("scale_by_dim1", [f"{SCALE} -> scores = scores / query.shape[1] ** 0.5"]),
    ("scale_by_seq_len", [f"{SCALE} -> scores = scores / math.sqrt(scores.size(-1))"]),
    ("scale_by_seq_len", [f"{SCALE} -> scores = scores / math.sqrt(query.size(-2))"]),
    ("scale_by_value_width", [f"{SCALE} -> scores = scores / math.sqrt(value.size(-1))"]),
    ("scale_by_batch", [f"{SCALE} -> scores = scores / math.sqrt(len(query))"]),
    ("scale_by_norm", [f"{SCALE} -> scores = scores / scores.std()"]),
    ("scale_torch_sqrt_int", [f"{SCALE} -> scores = scores / torch.sqrt(query.size(-1))"]),
    ("scale_torch_sqrt_int", [f"{SCALE} -> scores = scores * torch.rsqrt(key.shape[-1])"]),
]

MASKS = [
    ("mask_minus_inf_times", [f'{FILL} -> scores = scores + (1 - mask.int()) * float("-inf")']),
    ("mask_fill_plus_inf", [f"{FILL} -> scores = scores.masked_fill(mask == 0, math.inf)"]),
    ("mask_fill_large_positive", [f"{FILL} -> scores = scores.masked_fill(mask == 0, 1e9)"]),
    ("mask_fill_large_positive", [f"{FILL} -> scores = torch.where(mask == 0, 1e4, scores)"]),
    ("mask_tilde_on_int", [f"{FILL} -> scores = scores.masked_fill((~mask) != 0, -1e9)"]),
    ("mask_inverted", [f"{FILL} -> scores = scores.masked_fill(mask == 1, -math.inf)"]),
    ("mask_inverted", [f"{FILL} -> scores = torch.where(mask == 0, scores, -1e9)"]),
    ("mask_inverted", [f"{FILL} -> scores = scores + mask.float() * -1e9"]),
    ("mask_fill_minus_10", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -10)"]),
    ("mask_fill_minus_10", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -7.5)"]),
    ("mask_fill_minus_10", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e4)"]),
    ("mask_fill_minus_10", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -300.0)"]),
    ("mask_zero_score", [f"{FILL} -> scores = scores * mask"]),
    ("mask_finfo_tiny", [f"{FILL} -> scores = scores.masked_fill(mask == 0, 0)"]),
    ("mask_softmax_wrong_with_minus_inf", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e9)", f"{SOFTMAX} -> weights = scores.softmax(dim=-2)"]),
    ("mask_one_minus_bool", [f"{FILL} -> scores = scores.masked_fill((1 - mask) == 1, -1e9)"]),
    ("mask_result_dropped", [f"{FILL} -> scores.masked_fill(mask == 0, -1e9)"]),
    ("mask_result_dropped", [f"{FILL} -> pass"]),
    ("mask_fill_minus_1e_minus_9", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e-9)"]),
    ("mask_additive_0_1", [f"{FILL} -> scores = scores + mask.float()"]),
    ("mask_min_of_scores", [f"{FILL} -> scores = scores.masked_fill(mask == 0, scores.min().item())"]),
    ("mask_min_of_scores", [f"{FILL} -> scores = torch.where(mask == 0, scores.amin(-1, keepdim=True), scores)"]),
    ("mask_square_slice", [f"{FILL} -> n = query.size(-2); scores = scores.masked_fill(mask[..., :n, :n] == 0, -1e9)"]),
    ("mask_truth_value", ["if mask is not None: -> if mask:"]),
    ("mask_finfo_tiny", [f"{FILL} -> scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).tiny)"]),
    ("mask_after_softmax", [f"{FILL} -> pass", f"{SOFTMAX} -> weights = scores.softmax(-1) * mask"]),
    ("mask_after_softmax", [f"{FILL} -> pass", f"{SOFTMAX} -> weights = scores.softmax(-1).masked_fill(mask == 0, 0)"]),
    ("mask_transposed", [f"{FILL} -> scores = scores.masked_fill(mask.transpose(-2, -1) == 0, -1e9)"]),
    ("mask_always_causal", [f"{FILL} -> scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -1e9)"]),
    ("mask_changed", [f"{FILL} -> mask.fill_(True)"]),
    ("mask_changed", [f'{FILL} -> scores = scores.masked_fill(mask == 0, float("-inf")); mask.zero_()']),
    ("scale_missing", [f"{SCALE} -> pass"]),
    ("att_weights_times_key", [f"{MIX} -> output = used @ key"]),
    ("att_weights_transposed", [f"{MIX} -> output = used.mT @ value"]),
]

DROPOUTS = [
    ("dropout_not_applied", [f"{USED} -> used = weights"]),
    ("dropout_not_applied", [f"{USED} -> used = weights; dropout is None or dropout(weights)"]),
    ("dropout_on_scores", [f"{SOFTMAX} -> weights = (scores if dropout is None else dropout(scores)).softmax(-1)", f"{USED} -> used = weights"]),
    ("dropout_on_output", [f"{USED} -> used = weights", f"{MIX} -> output = used @ value if dropout is None else dropout(used @ value)"]),
    ("dropout_on_values", [f"{USED} -> used = weights", f"{MIX} -> output = used @ (value if dropout is None else dropout(value))"]),
    ("dropout_twice", [f"{USED} -> used = weights if dropout is None else dropout(dropout(weights))"]),
    ("dropout_renormalised", [f"{USED} -> used = weights if dropout is None else F.normalize(dropout(weights), p=1, dim=-1)"]),
    ("dropout_required", [f"{USED} -> used = dropout(weights)"]),
    ("dropout_of_its_own", [f"{USED} -> used = weights if dropout is None else F.dropout(weights, dropout.p)"]),
    ("dropout_of_its_own", [f"{USED} -> used = weights if dropout is None else nn.Dropout(0.5)(weights)"]),
]

WRONG = (
    [Answer("attention", "attention", edit(BASE, *c), id) for id, c in STEPS + SCALES]
    + [Answer("scaling", "attention", edit(BASE, *c), id) for id, c in SCALES]
    + [Answer("masked_attention", "attention", edit(BASE, *c), id) for id, c in MASKS]
    + [Answer("dropout", "attention", edit(BASE, *c), id) for id, c in DROPOUTS]
)

_ROUNDABOUT = [
    [],
    [f"{SCORES} -> scores = torch.einsum('...id,...jd->...ij', query, key)"],
    [f"{SCORES} -> scores = (query.unsqueeze(-2) * key.unsqueeze(-3)).sum(-1)"],
    [f"{SCORES} -> scores = (key @ query.mT).mT"],
    [f"{SCORES} -> scores = query.matmul(key.movedim(-1, -2))"],
    [f"{SCALE} -> scores = scores * key.shape[-1] ** -0.5"],
    [f"{SCALE} -> pass", f"{SCORES} -> s = query.size(-1) ** 0.25; scores = (query / s) @ (key / s).transpose(-1, -2)"],
    [f"{SCALE} -> scores = scores / torch.sqrt(torch.tensor(query.shape[-1], dtype=scores.dtype))"],
    [f"{SCALE} -> scores /= math.sqrt(query.size(-1))"],
    [f"{SOFTMAX} -> weights = scores.softmax(scores.dim() - 1)"],
    [f"{SOFTMAX} -> weights = F.log_softmax(scores, -1).exp()"],
    [f"{SOFTMAX} -> weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))"],
    [_by_hand(" - scores.amax(-1, keepdim=True)")],
    [_by_hand(" - scores.max(dim=-1, keepdim=True)[0].detach()")],
    [f"{MIX} -> output = (used.unsqueeze(-1) * value.unsqueeze(-3)).sum(-2)"],
    [f"{MIX} -> output = torch.einsum('...ij,...jv->...iv', used, value)"],
    [f"{MIX} -> output = (value.mT @ used.mT).mT"],
    [f"{GIVE} -> return [output, weights]"],
    [f"{SCORES} -> query, key = query.clone(), key.contiguous(); scores = query @ key.transpose(-2, -1)"],
    [f"{SCORES} -> print('scores'); torch.manual_seed(7); scores = query @ key.transpose(-2, -1)"],
    [f"{SCORES} -> torch.set_default_dtype(torch.float64); scores = query @ key.transpose(-2, -1)"],
    [f"{MIX} -> output = F.scaled_dot_product_attention(query, key, value, None if mask is None else mask.bool()) if dropout is None else used @ value"],
]
_MASKED = [
    ["if mask is not None: -> if mask != None:"],
    [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e9)"],
    [f"{FILL} -> scores = scores.masked_fill(~mask.bool(), torch.finfo(scores.dtype).min)"],
    [f"{FILL} -> scores = scores.masked_fill(torch.logical_not(mask), -1e10)"],
    [f"{FILL} -> scores = torch.where(mask != 0, scores, -math.inf)"],
    [f"{FILL} -> scores = scores + torch.zeros_like(scores).masked_fill(mask == 0, -math.inf)"],
    [f"{FILL} -> scores = scores - (1 - mask.to(scores.dtype)) * 1e9"],
    [f"{FILL} -> scores = scores + mask.to(scores.dtype).log()"],
    [f"{FILL} -> scores = scores.clone(); scores[(mask == 0).expand_as(scores)] = -1e9"],
    [f"{FILL} -> pass", f"{SOFTMAX} -> w = scores.softmax(-1) * mask; weights = w / w.sum(-1, keepdim=True)"],
    [f"{SOFTMAX} -> weights = scores.softmax(-1).nan_to_num()"],
    [f"{SOFTMAX} -> weights = torch.softmax(scores, dim=-1).masked_fill(mask == 0, 0.0)"],
]
_DROPPED = [
    [],
    [f"{USED} -> used = dropout(weights) if dropout else weights"],
    [f"{USED} -> used = (dropout or nn.Identity())(weights)"],
    [f"{GIVE} -> return output, used"],
]

RIGHT = (
    [Answer(check, "attention", edit(BASE, *c)) for check in ("attention", "scaling") for c in _ROUNDABOUT]
    + [Answer("masked_attention", "attention", edit(BASE, *c)) for c in _ROUNDABOUT + _MASKED]
    + [Answer("dropout", "attention", edit(BASE, *c)) for c in _DROPPED]
)

# -- scores and softmax


def _scores(line):
    return f"def scores(query, key):\n    return {line}\n"


def _rows(line):
    return f"def softmax_rows(scores):\n    e = scores.exp()\n    return {line}\n"


def _stable(line):
    return f"def stable_softmax(scores):\n    m = scores.amax(-1, keepdim=True)\n    e = (scores - m).exp()\n    return {line}\n"


def _std(line):
    return f"def score_std(d_k):\n    return {line}\n"


WRONG += (
    [
        Answer("scores", "scores", _scores(line), id)
        for id, line in [
            ("scores_swapped", "key @ query.transpose(-2, -1)"),
            ("scores_key_not_transposed", "query @ key"),
            ("scores_transpose_counts_from_front", "query @ key.transpose(1, 2)"),
            ("scores_transpose_counts_from_front", "torch.bmm(query, key.permute(0, 2, 1))"),
            ("scores_transpose_all_axes", "query @ key.T"),
            ("scores_key_reshaped", "query @ key.reshape(*key.shape[:-2], key.size(-1), key.size(-2))"),
            ("scores_scaled", "query @ key.mT / query.size(-1) ** 0.5"),
            ("scores_elementwise", "query * key"),
            ("scores_softmax", "(query @ key.mT).softmax(-1)"),
            ("scores_one_input", "query @ query.mT"),
            ("scores_cosine", "F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT"),
            ("scores_summed_over_batch", "torch.einsum('...qd,...kd->qk', query, key)"),
            ("scores_detached", "(query @ key.mT).detach()"),
            ("returned_none", "None"),
        ]
    ]
    + [
        Answer("softmax_rows", "softmax_rows", _rows(line), id)
        for id, line in [
            ("softmax_over_queries", "e / e.sum(-2, keepdim=True)"),
            ("softmax_axis_counted_from_front", "e / e.sum(1, keepdim=True)"),
            ("softmax_axis_counted_from_front", "scores.softmax(2)"),
            ("softmax_whole_tensor", "e / e.sum()"),
            ("softmax_sum_without_keepdim", "e / e.sum(-1)"),
            ("softmax_without_exp", "scores / scores.sum(-1, keepdim=True)"),
            ("softmax_not_normalised", "e"),
            ("softmax_mean", "e / e.mean(-1, keepdim=True)"),
            ("softmax_log", "(e / e.sum(-1, keepdim=True)).log()"),
            ("softmax_base_two", "2 ** scores / (2 ** scores).sum(-1, keepdim=True)"),
            ("softmax_sigmoid", "1 / (1 + (-scores).exp())"),
            ("softmax_negated", "(1 / e) / (1 / e).sum(-1, keepdim=True)"),
            ("softmax_hard", "F.one_hot(scores.argmax(-1), scores.size(-1)).float()"),
            ("softmax_epsilon", "e / (e.sum(-1, keepdim=True) + 1)"),
            ("softmax_detached", "(e / e.sum(-1, keepdim=True)).detach()"),
        ]
    ]
    + [
        Answer("stable_softmax", "stable_softmax", _stable(line), id)
        for id, line in [
            ("softmax_overflows", "scores.exp() / scores.exp().sum(-1, keepdim=True)"),
            ("softmax_global_max", "(x := (scores - scores.max()).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_column_max", "(x := (scores - scores.amax(-2, keepdim=True)).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_max_without_keepdim", "(x := (scores - scores.amax(-1)).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_clamped", "(x := scores.clamp(max=80).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_divided_by_max", "(x := (scores / m).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_over_queries", "(x := (scores - scores.amax(-2, keepdim=True)).exp()) / x.sum(-2, keepdim=True)"),
            ("softmax_not_normalised", "e"),
            ("softmax_sum_without_keepdim", "e / e.sum(-1)"),
            ("softmax_nan_papered_over", "(scores.exp() / scores.exp().sum(-1, keepdim=True)).nan_to_num()"),
            ("softmax_epsilon", "e / (1 + e.sum(-1, keepdim=True))"),
            ("softmax_changes_scores", "(x := scores.sub_(m).exp()) / x.sum(-1, keepdim=True)"),
        ]
    ]
    + [
        Answer("score_std", "score_std", _std(line), id)
        for id, line in [
            ("std_is_variance", "d_k"),
            ("std_after_the_division", "1"),
            ("std_inverted", "1 / d_k ** 0.5"),
            ("std_half", "d_k / 2"),
            ("std_log", "math.log2(d_k)"),
            ("std_fixed", "8"),
            ("std_of_sums", "(torch.randn(20000, d_k) + torch.randn(20000, d_k)).sum(-1).std()"),
            ("tensor_function_on_number", "torch.sqrt(d_k)"),
            ("wrong_type", "'root of d_k'"),
        ]
    ]
)
RIGHT += (
    [Answer("scores", "scores", _scores(line)) for line in ("query @ key.mT", "torch.einsum('...id,...jd->...ij', query, key)", "torch.matmul(query, key.swapaxes(-1, -2))", "(key @ query.mT).mT")]
    + [Answer("softmax_rows", "softmax_rows", _rows(line)) for line in ("e / e.sum(-1, keepdim=True)", "scores.softmax(-1)", "e / e.sum(-1)[..., None]", "e / (e.sum(-1, keepdim=True) + 1e-12)")]
    + [Answer("stable_softmax", "stable_softmax", _stable(line)) for line in ("e / e.sum(-1, keepdim=True)", "torch.exp(scores - scores.logsumexp(-1, keepdim=True))", "(scores - scores.max(-1, keepdim=True).values).softmax(-1)")]
    + [Answer("score_std", "score_std", _std(line)) for line in ("d_k ** 0.5", "math.sqrt(d_k)", "torch.tensor(float(d_k)).sqrt()", "(torch.randn(20000, d_k) * torch.randn(20000, d_k)).sum(-1).std()")]
)
