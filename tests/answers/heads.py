"""Answers to the exercises that split, merge and sum heads (chapters 4 and 5)."""

from tests.answers import Answer, edit


def _split(line):
    return f"def split_heads(x, num_heads):\n    B, T, D = x.shape\n    h, d = num_heads, D // num_heads\n    return {line}\n"


def _merge(line):
    return f"def merge_heads(x):\n    B, h, T, d = x.shape\n    return {line}\n"


def _sum(line):
    return f"def sum_over_heads(heads, weight):\n    B, h, T, d = heads.shape\n    return {line}\n"


ATTEND = '''
def heads_attention(query, key, value, num_heads, mask=None):
    def split(x):
        return x.reshape(x.size(0), x.size(1), num_heads, -1).transpose(1, 2)

    def merge(x):
        return x.transpose(1, 2).flatten(2)

    q, k, v = split(query), split(key), split(value)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
    weights = scores.softmax(-1)
    return merge(weights @ v), weights
'''
SPLIT = "return x.reshape(x.size(0), x.size(1), num_heads, -1).transpose(1, 2)"
MERGE = "return x.transpose(1, 2).flatten(2)"
SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))"
FILL = "scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)"
SOFTMAX = "weights = scores.softmax(-1)"
GIVE = "return merge(weights @ v), weights"

WRONG = (
    [
        Answer("split_heads", "split_heads", _split(line), id)
        for id, line in [
            ("split_view_directly", "x.view(B, h, T, d)"),
            ("split_view_directly", "x.reshape(B * h, T, d).view(B, h, T, d)"),
            ("split_view_directly", "x.flatten(1).reshape(B, h, T, -1)"),
            ("split_view_directly", "x.reshape(B, h, d, T).transpose(2, 3)"),
            ("split_no_transpose", "x.view(B, T, h, d)"),
            ("split_no_transpose", "torch.stack(x.split(d, -1), 2)"),
            ("split_head_axis_first", "torch.stack(x.split(d, dim=-1))"),
            ("split_head_axis_first", "x.view(B, T, h, d).permute(2, 0, 1, 3)"),
            ("split_interleaved", "x.view(B, T, d, h).permute(0, 3, 1, 2)"),
            ("split_interleaved", "torch.stack([x[..., i::h] for i in range(h)], dim=1)"),
            ("split_sequence_instead", "torch.stack(torch.chunk(x, h, dim=1), dim=1)"),
            ("split_after_exchange", "x.transpose(1, 2).reshape(B, h, T, d)"),
            ("split_still_folded", "torch.cat(x.split(d, dim=-1), dim=0)"),
            ("split_still_folded", "x.view(B, T, h, d).transpose(1, 2).reshape(B * h, T, d)"),
            ("split_last_axes_swapped", "x.view(B, T, h, d).permute(0, 2, 3, 1)"),
            ("split_head_count_and_width_swapped", "x.view(B, T, d, h).transpose(1, 2)"),
            ("split_wrong_axes_swapped", "x.view(B, T, h, d).transpose(2, 3)"),
            ("split_one_head_repeated", "x[..., :d].unsqueeze(1).repeat(1, h, 1, 1)"),
            ("returned_none", "None"),
        ]
    ]
    + [
        Answer("merge_heads", "merge_heads", _merge(line), id)
        for id, line in [
            ("merge_no_transpose", "x.reshape(B, T, h * d)"),
            ("merge_no_transpose", "x.contiguous().view(B, T, -1)"),
            ("merge_sum", "x.sum(1)"),
            ("merge_mean", "torch.mean(x, dim=1)"),
            ("merge_max", "torch.amax(x, 1)"),
            ("merge_first_head", "x[:, 0]"),
            ("merge_cat_along_batch", "torch.cat([x[:, i] for i in range(h)], 0)"),
            ("merge_cat_along_tokens", "torch.cat([x[:, i] for i in range(h)], 1)"),
            ("merge_squeezes", "x.transpose(1, 2).reshape(B, T, -1).squeeze()"),
            ("merge_features_interleaved", "torch.stack(list(x.unbind(1)), -1).reshape(B, T, -1)"),
            ("merge_features_interleaved", "x.permute(0, 2, 3, 1).flatten(2)"),
            ("merge_swap_last_two", "x.mT.reshape(B, T, h * d)"),
            ("merge_wrong_axes_swapped", "x.transpose(0, 2).reshape(B, T, h * d)"),
            ("merge_view_refused", "x.transpose(1, 2).view(B, T, h * d)"),
            ("merge_not_joined", "x.transpose(1, 2)"),
            ("merge_not_joined", "torch.stack(x.unbind(1), dim=-1)"),
            ("merge_heads_left", "x.transpose(1, 2).reshape(B, h, T * d)"),
            ("merge_tokens_too", "x.transpose(1, 2).flatten(1)"),
            ("merge_sentences_joined", "x.transpose(1, 2).reshape(-1, h * d)"),
            ("join_wants_a_list", "torch.cat(x, dim=-1)"),
            ("merge_heads_reversed", "x.flip(1).transpose(1, 2).flatten(2)"),
        ]
    ]
    + [
        Answer("sum_over_heads", "sum_over_heads", _sum(line), id)
        for id, line in [
            ("sum_weight_not_transposed", "heads.transpose(1, 2).flatten(2) @ weight"),
            ("sum_weight_not_transposed", "sum(heads[:, i] @ weight[i * d:(i + 1) * d] for i in range(h))"),
            ("sum_wrong_blocks", "sum(heads[:, i] @ weight[i * d:(i + 1) * d].T for i in range(h))"),
            ("sum_first_block_for_all", "sum(heads[:, i] @ weight[:, :d].T for i in range(h))"),
            ("sum_wrong_blocks", "sum(x @ w.T for x, w in zip(heads.unbind(1), weight.chunk(h, 0)))"),
            ("sum_weight_reshaped", "torch.einsum('bhtd,hdo->bto', heads, weight.reshape(h, d, -1))"),
            ("sum_counted_by_head", "sum(heads.transpose(1, 2).flatten(2) @ weight.T for _ in range(h))"),
            ("sum_before_the_product", "heads.sum(1) @ weight.view(-1, h, d).sum(1).T"),
            ("sum_before_the_product", "sum(heads.mean(1) @ weight[:, i * d:(i + 1) * d].T for i in range(h))"),
            ("sum_one_term_left", "[heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h)][-1]"),
            ("sum_over_sentences", "sum(heads[i] @ weight[:, i * d:(i + 1) * d].T for i in range(B))"),
            ("sum_along_another_axis", "torch.stack([heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h)], 1).sum(2)"),
            ("sum_of_everything", "torch.stack([heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h)]).sum()"),
            ("sum_count_for_width", "sum(heads[:, i] @ weight[:, i * h:(i + 1) * h].T for i in range(h))"),
            ("sum_mean", "heads.transpose(1, 2).flatten(2) @ weight.T / h"),
            ("sum_without_moving_axis", "heads.reshape(B, T, h * d) @ weight.T"),
            ("sum_interleaved", "sum(heads[:, i] @ weight[:, i::h].T for i in range(h))"),
            ("sum_reversed", "sum(heads[:, h - 1 - i] @ weight[:, i * d:(i + 1) * d].T for i in range(h))"),
            ("sum_without_weight", "heads.sum(1)"),
            ("sum_last_missing", "sum(heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h - 1))"),
            ("sum_not_summed", "torch.stack([heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h)], 1)"),
        ]
    ]
    + [
        Answer("heads_attention", "heads_attention", edit(ATTEND, *changes), id)
        for id, changes in [
            ("mha_split_view_directly", [f"{SPLIT} -> return x.reshape(x.size(0), num_heads, x.size(1), -1)"]),
            (
                "mha_split_and_merge_view",
                [
                    f"{SPLIT} -> return x.reshape(x.size(0), num_heads, x.size(1), -1)",
                    f"{MERGE} -> return x.reshape(x.size(0), x.size(2), -1)",
                ],
            ),
            ("mha_merge_view", [f"{MERGE} -> return x.reshape(x.size(0), x.size(2), -1)"]),
            ("mha_interleaved_both_ways", [f"{SPLIT} -> return torch.stack([x[..., i::num_heads] for i in range(num_heads)], 1)"]),
            ("mha_single_head", ["q, k, v = split(query), split(key), split(value) -> q, k, v = query[:, None], key[:, None], value[:, None]"]),
            ("mha_scale_d_model", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(query.size(-1))"]),
            ("mha_scale_missing", [f"{SCORES} -> scores = q @ k.mT"]),
            ("mha_scale_other", [f"{SCORES} -> scores = q @ k.mT / q.size(-1)"]),
            ("mha_mask_without_head_axis", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -math.inf)"]),
            ("mha_mask_repeat_folded", [f"{FILL} -> m = mask.expand(query.size(0), query.size(1), key.size(1)).repeat(num_heads, 1, 1); scores = scores.masked_fill(m.view(scores.shape) == 0, -math.inf)"]),
            ("mha_mask_result_dropped", [f"{FILL} -> pass"]),
            ("mha_mask_inverted_for_sdpa", [f"{FILL} -> scores = scores.masked_fill(mask.unsqueeze(1), -1e9)"]),
            ("mha_softmax_over_heads", [f"{SOFTMAX} -> weights = scores.softmax(1)"]),
            ("mha_heads_averaged", [f"{MERGE} -> return x.sum(1)"]),
            ("mha_scores_sum_heads", [f"{SCORES} -> scores = (q @ k.mT / math.sqrt(q.size(-1))).sum(1, keepdim=True)"]),
            ("mha_weights_mix_keys", [f"{GIVE} -> return merge(weights @ k), weights"]),
            ("mha_not_merged", [f"{GIVE} -> return weights @ v, weights"]),
            ("mha_weights_averaged", [f"{GIVE} -> return merge(weights @ v), weights.mean(1)"]),
            ("not_a_pair", [f"{GIVE} -> return merge(weights @ v)"]),
            ("att_returns_scores_as_weights", [f"{GIVE} -> return merge(weights @ v), scores"]),
            ("mha_merge_view+mha_mask_inverted_for_sdpa", [f"{MERGE} -> return x.reshape(x.size(0), x.size(2), -1)", f"{FILL} -> scores = scores.masked_fill(mask.unsqueeze(1), -1e9)"]),
        ]
    ]
)

RIGHT = (
    [
        Answer("split_heads", "split_heads", _split(line))
        for line in (
            "x.view(B, T, h, d).transpose(1, 2)",
            "x.unflatten(-1, (h, d)).movedim(2, 1)",
            "torch.stack(x.chunk(h, -1), 1)",
            "torch.stack([x[..., i * d:(i + 1) * d] for i in range(h)], dim=1)",
            "x.reshape(B, T, h, d).permute(0, 2, 1, 3).contiguous()",
            "torch.einsum('bthd->bhtd', x.reshape(B, T, h, d))",
            "__import__('einops').rearrange(x, 'b t (h d) -> b h t d', h=h)",
        )
    ]
    + [
        Answer("merge_heads", "merge_heads", _merge(line))
        for line in (
            "x.transpose(1, 2).reshape(B, T, h * d)",
            "x.transpose(1, 2).contiguous().view(B, T, -1)",
            "torch.cat(x.unbind(1), -1)",
            "torch.cat([x[:, i] for i in range(h)], dim=2)",
            "x.permute(0, 2, 1, 3).flatten(2)",
            "__import__('einops').rearrange(x, 'b h t d -> b t (h d)')",
        )
    ]
    + [
        Answer("sum_over_heads", "sum_over_heads", _sum(line))
        for line in (
            "sum(heads[:, i] @ weight[:, i * d:(i + 1) * d].T for i in range(h))",
            "F.linear(heads.transpose(1, 2).flatten(2), weight)",
            "torch.einsum('bhtd,ohd->bto', heads, weight.view(-1, h, d))",
            "torch.stack([F.linear(heads[:, i], weight[:, i * d:(i + 1) * d]) for i in range(h)]).sum(0)",
        )
    ]
    + [
        Answer("heads_attention", "heads_attention", edit(ATTEND, *changes))
        for changes in (
            [],
            [f"{FILL} -> scores = scores.masked_fill(~mask[:, None], -math.inf)"],
            [f"{GIVE} -> return [merge(weights @ v), weights]"],
            [f"{MERGE} -> return torch.cat(x.unbind(1), -1)"],
            [f"{SPLIT} -> return torch.stack(x.chunk(num_heads, -1), 1)"],
        )
    ]
)


LOOPED = """
def loop_of_heads(x, w_q, w_k, w_v, num_heads):
    B, T, d_model = x.shape
    d_k = d_model // num_heads
    outputs = []
    for i in range(num_heads):
        part = slice(i * d_k, (i + 1) * d_k)
        q = x @ w_q[part].T
        k = x @ w_k[part].T
        v = x @ w_v[part].T
        weights = torch.softmax(q @ k.transpose(-2, -1) / d_k**0.5, dim=-1)
        outputs.append(weights @ v)
    return torch.cat(outputs, dim=-1)
"""
PART = "part = slice(i * d_k, (i + 1) * d_k)"
Q, K, V = "q = x @ w_q[part].T", "k = x @ w_k[part].T", "v = x @ w_v[part].T"
TABLE = "weights = torch.softmax(q @ k.transpose(-2, -1) / d_k**0.5, dim=-1)"
JOIN = "return torch.cat(outputs, dim=-1)"


def _all(pattern):
    return [f"{old} -> {pattern.format(n=n, w=f'w_{n}')}" for n, old in (("q", Q), ("k", K), ("v", V))]


WRONG += [
    Answer("loop_of_heads", "loop_of_heads", edit(LOOPED, *changes), id)
    for id, changes in [
        ("loop_slices_the_input", _all("{n} = x[..., part] @ {w}[part, part].T")),
        ("loop_slices_the_input", _all("{n} = x[..., part] @ {w}[:, part].T")),
        ("loop_slices_the_input", _all("{n} = x[..., part] @ {w}[part]")),
        ("loop_slices_the_input", _all("{n} = x[..., part]")),
        ("loop_slices_the_columns", _all("{n} = x @ {w}[:, part]")),
        ("loop_weight_not_transposed", _all("{n} = x @ {w}[part]")),
        ("loop_not_joined", [f"{JOIN} -> return torch.stack(outputs, dim=1)"]),
        ("loop_not_joined", [f"{JOIN} -> return torch.stack(outputs)"]),
        ("loop_joined_along_tokens", [f"{JOIN} -> return torch.cat(outputs, dim=1)"]),
        ("loop_joined_without_moving", [f"{JOIN} -> return torch.stack(outputs, 1).reshape(x.shape)"]),
        ("loop_joined_along_tokens", [f"{JOIN} -> return torch.cat(outputs)"]),
        ("loop_features_interleaved", [f"{JOIN} -> return torch.stack(outputs, dim=-1).reshape(B, T, d_model)"]),
        ("loop_added_up", [f"{JOIN} -> return sum(outputs)"]),
        ("loop_last_head_alone", [f"{JOIN} -> return outputs[-1]"]),
        ("loop_one_slice_for_all", [f"{PART} -> part = slice(0, d_k)"]),
        ("loop_rows_interleaved", [f"{PART} -> part = slice(i, None, num_heads)"]),
        ("loop_rows_overlap", [f"{PART} -> part = slice(i, i + d_k)"]),
        ("loop_reversed", [f"{JOIN} -> return torch.cat(outputs[::-1], dim=-1)"]),
        ("loop_scale_of_the_model", [f"{TABLE} -> {TABLE.replace('d_k**0.5', 'd_model**0.5')}"]),
        ("loop_without_scale", [f"{TABLE} -> {TABLE.replace(' / d_k**0.5', '')}"]),
        ("loop_roles_mixed_up", [f"{K} -> {K.replace('w_k', 'w_q')}"]),
        ("loop_roles_mixed_up", [f"{V} -> {V.replace('w_v', 'w_k')}"]),
        ("loop_scale_twice", [f"{TABLE} -> {TABLE.replace('d_k**0.5', 'd_k')}"]),
        ("loop_pieces_of_the_sentence", [f"{JOIN} -> return torch.cat([(q @ k.mT / d_model**0.5).softmax(-1) @ v for q, k, v in zip(*((x @ w.T).chunk(num_heads, 1) for w in (w_q, w_k, w_v)))], 1)"]),
        ("loop_of_full_width", [f"{V} -> v = x @ w_v.T"]),
        ("loop_joins_the_weights", ["outputs.append(weights @ v) -> outputs.append(weights)"]),
        ("loop_slice_too_short", [f"{PART} -> part = slice(i * d_k, (i + 1) * d_k - 1)", f"{TABLE} -> {TABLE.replace('d_k**0.5', 'q.size(-1)**0.5')}"]),
        ("loop_begins_with_the_second", ["for i in range(num_heads): -> for i in range(1, num_heads + 1):", f"{TABLE} -> {TABLE.replace('d_k**0.5', 'max(q.size(-1), 1)**0.5')}"]),
        ("loop_overwrites_its_input", ["outputs.append(weights @ v) -> x = weights @ v; outputs.append(x)"]),
        ("loop_count_and_width_swapped", ["d_k = d_model // num_heads -> d_k, num_heads = num_heads, d_model // num_heads"]),
        ("loop_values_not_projected", [f"{V} -> v = x[..., part]"]),
        ("loop_without_heads", [f"{PART} -> part = slice(0, d_model)", f"{TABLE} -> {TABLE.replace('d_k**0.5', 'd_model**0.5')}", f"{JOIN} -> return outputs[0]"]),
    ]
]
RIGHT += [
    Answer("loop_of_heads", "loop_of_heads", edit(LOOPED, *changes))
    for changes in (
        [],
        _all("{n} = F.linear(x, {w}[part])"),
        _all("{n} = (x @ {w}.T)[..., part]"),
        _all("{n} = torch.einsum('btd,kd->btk', x, {w}[part])"),
        [f"{JOIN} -> return torch.stack(outputs, dim=2).flatten(2)"],
        [f"{TABLE} -> weights = (q / d_k**0.25 @ (k / d_k**0.25).mT).softmax(-1)"],
        [f"{PART} -> part = torch.arange(d_model).view(num_heads, d_k)[i]"],
    )
]
