"""Answers to the exercises of checks/exercises/attention.py, and the base text of attention."""

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

def _scores(line):
    return f"def scores(query, key):\n    return {line}\n"


def _rows(line):
    return f"def softmax_rows(scores):\n    e = scores.exp()\n    return {line}\n"


HEAD = '''
class SingleHeadAttention(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_k) for _ in range(3))

    def forward(self, query, key, value):
        q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        weights = scores.softmax(-1)
        return weights @ v, weights
'''
PROJECT = "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)"
H_SCORES = "scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5"
H_GIVE = "return weights @ v, weights"

WRONG = (
    [Answer("attention", "attention", edit(BASE, *c), id) for id, c in STEPS]
    +[
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
            ("scores_scaled", "(query.unsqueeze(-2) * key.unsqueeze(-3)).mean(-1)"),
            ("scores_product_of_sums", "query.sum(-1, keepdim=True) * key.sum(-1).unsqueeze(-2)"),
            ("scores_across_sentences", "torch.tensordot(query, key, dims=([-1], [-1]))"),
            ("scores_across_sentences", "query.reshape(-1, query.size(-1)) @ key.reshape(-1, key.size(-1)).T"),
            ("scores_of_one_sentence", "torch.stack([q @ key[0].transpose(-2, -1) for q in query])"),
            ("scores_key_reshaped", "(lambda b, t, d: torch.bmm(query, key.view(b, d, -1)))(*query.shape)"),
            ("scores_detached", "(query @ key.mT).detach()"),
            ("returned_none", "None"),
        ]
    ]
    +[
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
            ("softmax_whole_tensor", "torch.stack([row.exp() / row.exp().sum() for row in scores])"),
            ("softmax_by_count", "e / scores.size(-1)"),
            ("softmax_exp_of_sum", "e / scores.sum(-1, keepdim=True).exp()"),
            ("softmax_by_length", "F.normalize(e, dim=-1)"),
            ("softmax_negated", "(1 / e) / (1 / e).sum(-1, keepdim=True)"),
            ("softmax_hard", "F.one_hot(scores.argmax(-1), scores.size(-1)).float()"),
            ("softmax_epsilon", "e / (e.sum(-1, keepdim=True) + 1)"),
            ("softmax_detached", "(e / e.sum(-1, keepdim=True)).detach()"),
        ]
    ]
    + [
        Answer("single_head", "SingleHeadAttention", edit(HEAD, *changes), id)
        for id, changes in [
            ("scale_missing", [f"{H_SCORES} -> scores = q @ k.mT"]),
            ("head_scale_by_d_model", [f"{H_SCORES} -> scores = q @ k.mT / query.size(-1) ** 0.5"]),
            ("scale_without_sqrt", [f"{H_SCORES} -> scores = q @ k.mT / q.size(-1)"]),
            ("head_one_projection_for_all", ["self.w_v(value) -> self.w_k(value)"]),
            ("head_one_projection_for_all", [f"{PROJECT} -> q, k, v = self.w_q(query), self.w_q(key), self.w_q(value)"]),
            ("head_projections_swapped", [f"{PROJECT} -> q, k, v = self.w_q(query), self.w_v(key), self.w_k(value)"]),
            ("head_not_projected", [f"{PROJECT} -> q, k, v = self.w_q(query), self.w_k(key), value"]),
            ("head_wrong_input", ["self.w_v(value) -> self.w_v(key)"]),
            ("head_bias_left_out", [f"{PROJECT} -> q, k, v = query @ self.w_q.weight.T, key @ self.w_k.weight.T, value @ self.w_v.weight.T"]),
            ("head_activation", [f"{PROJECT} -> q, k, v = self.w_q(query).relu(), self.w_k(key).relu(), self.w_v(value).relu()"]),
            ("head_activation", ["(nn.Linear(d_model, d_k) for _ in range(3)) -> (nn.Sequential(nn.Linear(d_model, d_k), nn.ReLU()) for _ in range(3))"]),
            ("att_key_value_swapped", [f"{PROJECT} -> q, v, k = self.w_q(query), self.w_k(key), self.w_v(value)"]),
            ("head_wrong_input", ["self.w_k(key) -> self.w_k(query)"]),
            ("att_softmax_over_queries", ["scores.softmax(-1) -> scores.softmax(-2)"]),
            ("att_return_order", [f"{H_GIVE} -> return weights, weights @ v"]),
            ("not_a_pair", [f"{H_GIVE} -> return weights @ v"]),
        ]
    ]
)

ROUNDABOUT = [
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

RIGHT = (
    [Answer("attention", "attention", edit(BASE, *c)) for c in ROUNDABOUT]
    +[Answer("scores", "scores", _scores(line)) for line in ("query @ key.mT", "torch.einsum('...id,...jd->...ij', query, key)", "torch.matmul(query, key.swapaxes(-1, -2))", "(key @ query.mT).mT")]
    +[Answer("softmax_rows", "softmax_rows", _rows(line)) for line in ("e / e.sum(-1, keepdim=True)", "scores.softmax(-1)", "e / e.sum(-1)[..., None]", "e / (e.sum(-1, keepdim=True) + 1e-12)")]
    + [
        Answer("single_head", "SingleHeadAttention", edit(HEAD, *changes))
        for changes in (
            [],
            ["(nn.Linear(d_model, d_k) for _ in range(3)) -> (nn.Linear(d_model, d_k, bias=False) for _ in range(3))"],
            ["(nn.Linear(d_model, d_k) for _ in range(3)) -> (nn.LazyLinear(d_k) for _ in range(3))"],
            [f"{H_GIVE} -> return [weights @ v, weights]"],
            [f"{H_GIVE} -> return F.scaled_dot_product_attention(q, k, v), weights"],
        )
    ]
    + [Answer("single_head", "SingleHeadAttention", HEAD.replace("w_q", "ask").replace("w_k", "offer").replace("w_v", "give"))]
)
