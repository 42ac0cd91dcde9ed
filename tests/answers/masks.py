"""Answers to the exercises of checks/exercises/masks.py."""

from tests.answers import Answer, edit
from tests.answers.attention import BASE, FILL, MIX, ROUNDABOUT, SCALE, SOFTMAX

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
    ("mask_exp_underflows", [f"{FILL} -> pass", f"{SOFTMAX} -> e = scores.exp() * mask; weights = e / e.sum(-1, keepdim=True)"]),
    ("mask_exp_underflows", [f"{SOFTMAX} -> e = scores.exp(); weights = e / (e.sum(-1, keepdim=True) + 1e-9)"]),
    ("mask_takes_off_too_little", [f"{FILL} -> scores = scores + (mask.float() - 1) * 10"]),
    ("mask_fill_plus_inf", [f"{FILL} -> scores = scores.masked_fill(mask == 0, float('nan'))"]),
    ("mask_as_index", [f"{FILL} -> scores[mask == 0] = -math.inf"]),
    ("mask_transposed", [f"{FILL} -> scores = scores.masked_fill(mask.transpose(-2, -1) == 0, -1e9)"]),
    ("mask_always_causal", [f"{FILL} -> scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -1e9)"]),
    ("mask_changed", [f"{FILL} -> mask.fill_(True)"]),
    ("mask_changed", [f'{FILL} -> scores = scores.masked_fill(mask == 0, float("-inf")); mask.zero_()']),
    ("scale_missing", [f"{SCALE} -> pass"]),
    ("att_weights_times_key", [f"{MIX} -> output = used @ key"]),
    ("att_weights_transposed", [f"{MIX} -> output = used.mT @ value"]),
]

_MASKED = [
    [f"{FILL} -> pass", f"{SOFTMAX} -> w = scores.softmax(-1) * mask; weights = w / w.sum(-1, keepdim=True)"],
    [f"{FILL} -> pass", f"{SOFTMAX} -> w = torch.where(mask.bool(), scores.softmax(-1), 0.0); weights = F.normalize(w, p=1, dim=-1, eps=1e-9)"],
    ["if mask is not None: -> if mask != None:"],
    [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e9)"],
    [f"{FILL} -> scores = scores.masked_fill(~mask.bool(), torch.finfo(scores.dtype).min)"],
    [f"{FILL} -> scores = scores.masked_fill(torch.logical_not(mask), -1e10)"],
    [f"{FILL} -> scores = torch.where(mask != 0, scores, -math.inf)"],
    [f"{FILL} -> scores = scores + torch.zeros_like(scores).masked_fill(mask == 0, -math.inf)"],
    [f"{FILL} -> scores = scores - (1 - mask.to(scores.dtype)) * 1e9"],
    [f"{FILL} -> scores = scores + mask.to(scores.dtype).log()"],
    [f"{FILL} -> scores = scores.clone(); scores[(mask == 0).expand_as(scores)] = -1e9"],
    [
        f"{FILL} -> top = scores.masked_fill(mask == 0, -math.inf).amax(-1, keepdim=True)",
        f"{SOFTMAX} -> e = (scores - top).masked_fill(mask == 0, -math.inf).exp(); weights = e / e.sum(-1, keepdim=True)",
    ],
    [f"{SOFTMAX} -> weights = scores.softmax(-1).nan_to_num()"],
    [f"{SOFTMAX} -> weights = torch.softmax(scores, dim=-1).masked_fill(mask == 0, 0.0)"],
]


def _causal(line):
    return f"def causal_mask(size):\n    i = torch.arange(size)\n    ones = torch.ones(1, size, size)\n    return {line}\n"


def _padding(line):
    return f"def padding_mask(tokens, pad_id):\n    B, T = tokens.shape\n    return {line}\n"


def _decoder(line):
    return (
        "def decoder_mask(tokens, pad_id):\n    B, T = tokens.shape\n    real = (tokens != pad_id)[:, None, :]\n"
        f"    past = torch.ones(1, T, T).tril() == 1\n    return {line}\n"
    )


WRONG = (
    [Answer("masked_attention", "attention", edit(BASE, *c), id) for id, c in MASKS]
    + [
        Answer("causal_mask", "causal_mask", _causal(line), id)
        for id, line in [
            ("causal_upper", "ones.triu() == 1"),
            ("causal_upper", "(i[None] >= i[:, None])[None]"),
            ("causal_excludes_self", "ones.tril(-1) > 0"),
            ("causal_excludes_self", "(i[:, None] > i)[None]"),
            ("causal_excludes_self", "ones.triu() != 1"),
            ("causal_sees_next", "ones.tril(1).bool()"),
            ("causal_sees_next", "(i[:, None] + 1 >= i)[None]"),
            ("causal_inverted", "ones.triu(1).bool()"),
            ("causal_all_allowed", "ones.bool()"),
            ("causal_all_blocked", "ones == 0"),
            ("causal_diagonal_only", "torch.eye(size).bool()[None]"),
            ("causal_past_cut_short", "(ones.tril() - ones.tril(-2)).bool()"),
            ("causal_anti_diagonal", "ones.tril().flip(-1).bool()"),
            ("causal_fixed_size", "torch.ones(1, 5, 5).tril().bool()"),
            ("causal_fixed_size", "torch.ones(1, 512, 512).tril().bool()"),
            ("mask_of_one_axis", "(i >= i)[None]"),
            ("mask_of_one_axis", "(i[:, None] >= 1)[None]"),
            ("causal_additive", "torch.zeros(size, size).masked_fill(ones[0].triu(1) == 1, -math.inf)"),
            ("causal_additive", "nn.Transformer.generate_square_subsequent_mask(size)"),
            ("mask_not_bool", "ones.tril()"),
            ("mask_not_bool", "ones.tril().int()"),
            ("not_a_tensor_here", "torch.tril(size, size)"),
        ]
    ]
    + [
        Answer("padding_mask", "padding_mask", _padding(line), id)
        for id, line in [
            ("pad_inverted", "(tokens == pad_id)[:, None]"),
            ("pad_both_axes", "(tokens != pad_id)[:, None] * (tokens != pad_id)[:, :, None]"),
            ("pad_greater_than", "(tokens > pad_id)[:, None]"),
            ("pad_greater_than", "tokens.gt(pad_id).unsqueeze(1)"),
            ("pad_no_new_axis", "tokens != pad_id"),
            ("pad_on_queries", "(tokens != pad_id)[:, :, None]"),
            ("pad_axis_in_front", "(tokens != pad_id)[None]"),
            ("pad_extra_axis", "(tokens != pad_id)[:, None, None, :]"),
            ("pad_transposed", "(tokens != pad_id).T[:, None]"),
            ("pad_hardcoded_zero", "(tokens != 0)[:, None]"),
            ("pad_hardcoded_zero", "tokens.bool().unsqueeze(1)"),
            ("pad_assumes_the_end", "(torch.arange(T) < (tokens != pad_id).sum(1)[:, None])[:, None]"),
            ("pad_assumes_the_end", "(torch.arange(T) < (tokens == pad_id).int().argmax(1, keepdim=True)).unsqueeze(1)"),
            ("pad_of_one_sentence", "(tokens[0] != pad_id).expand(B, 1, -1)"),
            ("pad_keeps_ids", "tokens.masked_fill(tokens == pad_id, 0).unsqueeze(1)"),
            ("pad_repeated", "(tokens != pad_id)[:, None].repeat(1, T, 1)"),
            ("mask_not_bool", "(tokens != pad_id)[:, None].float()"),
        ]
    ]
    + [
        Answer("decoder_mask", "decoder_mask", _decoder(line), id)
        for id, line in [
            ("dec_or_instead_of_and", "real | past"),
            ("dec_or_instead_of_and", "(real.int() + past.int()) > 0"),
            ("dec_pad_on_queries", "real.transpose(1, 2) & past"),
            ("dec_pad_on_both", "real & real.transpose(1, 2) & past"),
            ("dec_padding_only", "real.expand(B, T, T)"),
            ("dec_causal_only", "past.expand(B, T, T)"),
            ("dec_upper", "real & past.transpose(1, 2)"),
            ("dec_excludes_self", "real & torch.ones(T, T).tril(-1).bool()"),
            ("dec_sees_next", "real & torch.ones(T, T).tril(1).bool()"),
            ("dec_inverted", "~(real & past)"),
            ("dec_inverted", "~real & past"),
            ("dec_exactly_one", "real ^ past"),
            ("dec_hardcoded_zero", "(tokens != 0)[:, None] & past"),
            ("dec_greater_than", "(tokens > pad_id)[:, None] & past"),
            ("dec_extra_axis", "(real & past)[:, None]"),
            ("mask_not_bool", "(real & past).int()"),
            ("dec_or_instead_of_and+dec_inverted", "~real | past"),
            ("dec_pad_on_both+dec_padding_only", "real & real.transpose(1, 2)"),
            ("compared_kinds", "real & __import__('mha_lib').causal_mask(tokens.shape)"),
            ("truth_of_tensor", "real & __import__('mha_lib').causal_mask(tokens)"),
        ]
    ]
)

RIGHT = (
    [Answer("masked_attention", "attention", edit(BASE, *c)) for c in ROUNDABOUT + _MASKED]
    + [
        Answer("causal_mask", "causal_mask", _causal(line))
        for line in (
            "ones.tril().bool()",
            "ones[0].tril() == 1",
            "(i[:, None] >= i)[None]",
            "~ones.triu(1).bool()",
            "1 - ones.triu(1) > 0",
            "torch.stack([i <= r for r in range(size)])",
            "(i[:, None] - i[None]).ge(0)",
            "ones.cumsum(-1) <= ones.cumsum(-2)",
            "torch.tensor([[c <= r for c in range(size)] for r in range(size)])[None]",
        )
    ]
    + [
        Answer("padding_mask", "padding_mask", _padding(line))
        for line in (
            "(tokens != pad_id)[:, None]",
            "~tokens.eq(pad_id).unsqueeze(1)",
            "(tokens - pad_id).bool().view(B, 1, T)",
            "tokens.ne(pad_id).reshape(B, 1, -1)",
            "torch.where(tokens == pad_id, False, True)[:, None]",
        )
    ]
    + [
        Answer("decoder_mask", "decoder_mask", _decoder(line))
        for line in (
            "real & past",
            "real * past",
            "torch.logical_and(real, past)",
            "~(~real | ~past)",
            "past.masked_fill(~real, False)",
            "(real.int() + past.int()) == 2",
            "torch.where(real, past, False)",
        )
    ]
)


def _window(line):
    return (
        "def window_mask(size, window):\n    i = torch.arange(size)\n    back = i[:, None] - i\n"
        f"    past = torch.ones(1, size, size).tril() == 1\n    return {line}\n"
    )


ROWS = """
def attention(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~mask, 0.0)
    return weights @ value, weights
"""
ROWS_SCORES = "scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))"
ROWS_FILL = "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)"
ROWS_SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
CLEAR = "weights = weights.masked_fill(~mask, 0.0)"
GIVE = "return weights @ value, weights"
INFINITE = f'{ROWS_FILL} -> scores = scores.masked_fill(~mask, float("-inf"))'
NO_FILL, NO_CLEAR = f"{ROWS_FILL} -> pass", f"{CLEAR} -> pass"

WRONG += [
    Answer("window_mask", "window_mask", _window(line), id)
    for id, line in [
        ("window_one_too_wide", "((back >= 0) & (back <= window))[None]"),
        ("window_one_too_wide", "past.triu(-window)"),
        ("window_one_too_narrow", "past & (back < window - 1)"),
        ("window_both_sides", "(back.abs() < window)[None]"),
        ("window_both_sides", "(back.abs() <= window // 2)[None]"),
        ("window_open_ahead", "(back < window)[None]"),
        ("window_ahead", "((back <= 0) & (back > -window))[None]"),
        ("window_whole_past", "past"),
        ("window_inverted", "~(past & (back < window))"),
        ("window_excludes_self", "((back > 0) & (back < window))[None]"),
        ("window_blocks", "(i[:, None] // window == i // window)[None] & past"),
        ("window_at_the_start", "past & (i < window)"),
        ("window_fixed", "past & (back < 3)"),
        ("mask_not_bool", "(past & (back < window)).float()"),
        ("window_limit_turned", "((back >= 0) & (back > window))[None]"),
        ("window_or", "((back >= 0) | (back < window))[None]"),
        ("window_wrong_sign", "torch.ones(1, size, size).tril().triu(window).bool()"),
        ("window_around_the_end", "((back % size) < window)[None]"),
        ("window_two_places", "((back == 0) | (back == window - 1))[None]"),
        ("window_begins_before_the_text", "torch.stack([torch.isin(i, i[r - window + 1 : r + 1]) for r in range(size)])"),
        ("mask_of_one_axis", "((i >= 0) & (i < window))[None]"),
        ("window_additive", "torch.zeros(size, size).masked_fill(~(past & (back < window))[0], -math.inf)"),
        ("returned_none", "None"),
    ]
] + [
    Answer("blocked_rows", "attention", edit(ROWS, *changes), id)
    for id, changes in [
        ("rows_nan", [INFINITE, NO_CLEAR]),
        ("rows_even", [f"{ROWS_FILL} -> scores = scores.masked_fill(~mask, -1e9)", NO_CLEAR]),
        ("rows_even", [NO_CLEAR]),
        ("rows_weights_left", [NO_CLEAR, f"{GIVE} -> return weights.masked_fill(~mask, 0.0) @ value, weights"]),
        ("rows_weights_left", [INFINITE, NO_CLEAR, f"{GIVE} -> return weights.masked_fill(~mask, 0.0) @ value, weights"]),
        ("rows_output_left", [NO_CLEAR, f"{GIVE} -> return weights @ value, weights.masked_fill(~mask, 0.0)"]),
        (
            "rows_gradient_nan",
            [f"{ROWS_FILL} -> scores = scores + torch.zeros_like(scores).masked_fill(~mask, -math.inf)"],
        ),
        (
            "rows_gradient_nan",
            [
                f"{ROWS_FILL} -> scores = scores + torch.where(mask, 0.0, -math.inf)",
                f"{CLEAR} -> weights = torch.nan_to_num(weights)",
            ],
        ),
        (
            "rows_gradient_nan",
            [
                f"{ROWS_FILL} -> exp = (scores - scores.masked_fill(~mask, -math.inf).amax(-1, keepdim=True).clamp_min(-1e30)).exp()",
                f"{ROWS_SOFTMAX} -> exp = exp.masked_fill(~mask, 0.0)",
                f"{CLEAR} -> weights = exp / exp.sum(-1, keepdim=True).clamp_min(1e-30)",
            ],
        ),
        ("rows_see_everything", [f"{ROWS_SCORES} -> {ROWS_SCORES}; mask = mask | ~mask.any(-1, keepdim=True)"]),
        (
            "rows_see_themselves",
            [
                f"{ROWS_SCORES} -> {ROWS_SCORES}; first = torch.arange(mask.size(-1)) == 0; "
                "mask = mask | (~mask.any(-1, keepdim=True) & first)"
            ],
        ),
        (
            "rows_masked_after_softmax",
            [NO_FILL, f"{CLEAR} -> weights = weights * mask; weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)"],
        ),
        (
            "rows_masked_after_softmax",
            [NO_FILL, f"{CLEAR} -> weights = weights * mask; weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num()"],
        ),
        ("rows_mask_not_shared_out", [NO_FILL]),
        ("rows_clearing_inverted", [f"{CLEAR} -> weights = weights.masked_fill(mask, 0.0)"]),
        ("rows_cleared_if_any", [f"{CLEAR} -> weights = weights * mask.all(-1, keepdim=True)"]),
        ("rows_of_keys", [f"{CLEAR} -> weights = weights * mask.any(-2, keepdim=True)"]),
        ("rows_all_cleared", [INFINITE, f"{CLEAR} -> weights = torch.zeros_like(weights) if weights.isnan().any() else weights"]),
        ("rows_weights_left", [INFINITE, NO_CLEAR, f"{GIVE} -> return torch.nan_to_num(weights @ value), weights"]),
        (
            "rows_exp_of_scores",
            [NO_FILL, f"{ROWS_SOFTMAX} -> exp = scores.exp() * mask", f"{CLEAR} -> weights = exp / (exp.sum(-1, keepdim=True) + 1e-9)"],
        ),
        ("mask_inverted", [f"{ROWS_FILL} -> scores = scores.masked_fill(mask, -math.inf)", f"{CLEAR} -> weights = weights.nan_to_num()"]),
        ("returned_none", [f"{GIVE} -> return None"]),
    ]
]

RIGHT += [
    Answer("window_mask", "window_mask", _window(line))
    for line in (
        "past.triu(1 - window)",
        "((back >= 0) & (back < window))[None]",
        "past & (back < window)",
        "past & ~past.tril(-window)",
        "torch.ones(size, size).tril().triu(-(window - 1)).bool()",
        "torch.tensor([[0 <= r - c < window for c in range(size)] for r in range(size)])",
    )
] + [
    Answer("blocked_rows", "attention", edit(ROWS, *changes))
    for changes in (
        [],
        [INFINITE],
        [INFINITE, f"{CLEAR} -> weights = weights.nan_to_num(0.0)"],
        [f"{ROWS_FILL} -> scores = torch.where(mask, scores, -1e9)"],
        [f"{CLEAR} -> weights = weights * mask"],
        [f"{CLEAR} -> weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)"],
        [INFINITE, f"{CLEAR} -> weights = torch.where(mask.any(-1, keepdim=True), weights, torch.zeros(()))"],
        [
            f"{ROWS_SOFTMAX} -> exp = (scores - scores.amax(-1, keepdim=True)).exp() * mask",
            f"{CLEAR} -> weights = exp / exp.sum(-1, keepdim=True).clamp_min(1e-30)",
        ],
    )
]
