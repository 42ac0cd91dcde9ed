"""Answers to the exercises of checks/exercises/scale.py."""

from tests.answers import Answer, edit
from tests.answers.attention import BASE, MIX, ROUNDABOUT, SCALE, SCORES, SOFTMAX

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


def _stable(line):
    return f"def stable_softmax(scores):\n    m = scores.amax(-1, keepdim=True)\n    e = (scores - m).exp()\n    return {line}\n"


def _std(line):
    return f"def score_std(d_k):\n    return {line}\n"


WRONG = (
    [Answer(check, "attention", edit(BASE, *c), id) for check in ("attention", "scaling") for id, c in SCALES]
    +[
        Answer("stable_softmax", "stable_softmax", _stable(line), id)
        for id, line in [
            ("softmax_global_max_epsilon", "(x := (scores - scores.max()).exp()) / (x.sum(-1, keepdim=True) + 1e-9)"),
            ("softmax_global_max_epsilon", "(x := (scores - scores.max()).exp()) / x.sum(-1, keepdim=True).clamp(min=1e-12)"),
            ("softmax_column_max", "(x := (scores - torch.max(scores, 0).values).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_max_after_exp", "(x := scores.exp() - scores.exp().amax(-1, keepdim=True)) / x.sum(-1, keepdim=True)"),
            ("softmax_adds_max", "(x := (scores + m).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_standardised", "(x := ((scores - scores.mean(-1, True)) / scores.std(-1, keepdim=True)).exp()) / x.sum(-1, keepdim=True)"),
            ("softmax_whole_tensor", "torch.stack([(x := torch.exp(r - r.max())) / x.sum() for r in scores])"),
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
    +[
        Answer("score_std", "score_std", _std(line), id)
        for id, line in [
            ("std_is_variance", "d_k"),
            ("std_after_the_division", "1"),
            ("std_inverted", "1 / d_k ** 0.5"),
            ("std_half", "d_k / 2"),
            ("std_log", "math.log2(d_k)"),
            ("std_fixed", "8"),
            ("std_fixed", "torch.randn(10000, d_k).norm(dim=-1).std()"),
            ("std_of_one", "(torch.randn(d_k) @ torch.randn(d_k)).std()"),
            ("std_is_mean", "(torch.randn(10000, d_k) * torch.randn(10000, d_k)).sum(-1).mean()"),
            ("std_whole_number", "int(d_k ** 0.5)"),
            ("std_of_sums", "torch.randn(20000, d_k).pow(2).sum(-1).std()"),
            ("std_times_a_number", "(torch.rand(20000, d_k) * torch.rand(20000, d_k)).sum(-1).std()"),
            ("std_few_draws", "(torch.randn(20, d_k) * torch.randn(20, d_k)).sum(-1).std()"),
            ("std_of_sums", "(torch.randn(20000, d_k) + torch.randn(20000, d_k)).sum(-1).std()"),
            ("tensor_function_on_number", "torch.sqrt(d_k)"),
            ("wrong_type", "'root of d_k'"),
        ]
    ]
)

BEFORE = edit(BASE, f"{SCALE} -> pass", f"{SCORES} -> scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)")
BEFORE_SCORES = "scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)"
_BEFORE = [
    [],
    [f"{BEFORE_SCORES} -> scores = query @ (key / math.sqrt(query.size(-1))).transpose(-2, -1)"],
    [f"{BEFORE_SCORES} -> s = query.size(-1) ** 0.25; scores = (query / s) @ (key / s).transpose(-1, -2)"],
    [f"{BEFORE_SCORES} -> scores = torch.einsum('...id,...jd->...ij', query * key.shape[-1] ** -0.5, key)"],
    [f"{BEFORE_SCORES} -> scores = (query.div(key.size(-1) ** 0.5).unsqueeze(-2) * key.unsqueeze(-3)).sum(-1)"],
    [f"{BEFORE_SCORES} -> d = torch.tensor(float(query.size(-1))); scores = (query / d.sqrt()) @ key.mT"],
    [f"{BEFORE_SCORES} -> scores = F.linear(query, key) if False else ((key / math.sqrt(key.size(-1))) @ query.mT).mT"],
]

RIGHT = (
    [Answer("scaling", "attention", edit(base, *c)) for base, changes in ((BEFORE, _BEFORE), (BASE, ROUNDABOUT)) for c in changes]
    +[Answer("stable_softmax", "stable_softmax", _stable(line)) for line in ("e / e.sum(-1, keepdim=True)", "torch.exp(scores - scores.logsumexp(-1, keepdim=True))", "(scores - scores.max(-1, keepdim=True).values).softmax(-1)")]
    +[Answer("score_std", "score_std", _std(line)) for line in ("d_k ** 0.5", "math.sqrt(d_k)", "torch.tensor(float(d_k)).sqrt()", "(torch.randn(20000, d_k) * torch.randn(20000, d_k)).sum(-1).std()")]
)


def _divisor(line):
    return f"def divisor(d_k, spread_query, spread_key):\n    a, b = spread_query, spread_key\n    return {line}\n"


WRONG += [
    Answer("divisor", "divisor", _divisor(line), id)
    for id, line in [
        ("divisor_ignores_spreads", "d_k ** 0.5"),
        ("divisor_one_spread", "a * math.sqrt(d_k)"),
        ("divisor_one_spread", "spread_key * d_k ** 0.5"),
        ("divisor_one_spread", "max(a, b) * d_k ** 0.5"),
        ("divisor_one_spread", "min(a, b) * d_k ** 0.5"),
        ("divisor_is_variance", "(a * b) ** 2 * d_k"),
        ("divisor_without_root", "a * b * d_k"),
        ("divisor_without_width", "a * b"),
        ("divisor_root_of_spreads", "(a * b * d_k) ** 0.5"),
        ("divisor_adds_spreads", "(a + b) * d_k ** 0.5"),
        ("divisor_adds_spreads", "math.sqrt(d_k * (a ** 2 + b ** 2))"),
        ("divisor_inverted", "1 / (a * b * d_k ** 0.5)"),
        ("divisor_spreads_divided", "d_k ** 0.5 / (a * b)"),
        ("divisor_fixed", "24"),
        ("divisor_root_of_spreads", "math.sqrt(d_k * a * b ** 2)"),
        ("divisor_adds_spreads", "math.sqrt(d_k + a ** 2 + b ** 2)"),
        ("divisor_spreads_squared", "math.sqrt(d_k) * (a * b) ** 2"),
        ("divisor_spread_as_mean", "(torch.normal(a, 1.0, (20000, d_k)) * torch.normal(b, 1.0, (20000, d_k))).sum(-1).std()"),
        ("divisor_is_mean", "((torch.randn(10000, d_k) * a) @ (torch.randn(d_k) * b)).mean()"),
        ("divisor_spreads_divided", "math.sqrt(d_k) * a / b"),
        ("returned_none", "None"),
        ("wrong_type", "f'{a * b} root of {d_k}'"),
    ]
]
RIGHT += [
    Answer("divisor", "divisor", _divisor(line))
    for line in (
        "a * b * d_k ** 0.5",
        "math.sqrt(d_k * a ** 2 * b ** 2)",
        "torch.tensor(float(d_k)).sqrt() * a * b",
        "(a * torch.randn(20000, d_k) * b * torch.randn(20000, d_k)).sum(-1).std()",
        "(torch.randn(40000, d_k) @ torch.randn(d_k, 1)).std().item() * 0 + a * (b * math.sqrt(d_k))",
    )
]
