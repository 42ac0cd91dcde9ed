"""Answers to the exercises of checks/exercises/layer.py."""

from tests.answers import Answer, edit
from tests.answers import attention as base

LAYER = '''
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        assert d_model % num_heads == 0
        self.h, self.d_k = num_heads, d_model // num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.reshape(x.size(0), x.size(1), self.h, self.d_k).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = self.dropout(scores.softmax(-1))
        mixed = weights @ v
        return self.w_o(self.merge(mixed))
'''
ASSERT = "assert d_model % num_heads == 0"
WIDTH = "self.h, self.d_k = num_heads, d_model // num_heads"
LINEARS = "self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))"
DROPOUT = "self.dropout = nn.Dropout(dropout)"
SPLIT = "return x.reshape(x.size(0), x.size(1), self.h, self.d_k).transpose(1, 2)"
MERGE = "return x.transpose(1, 2).flatten(2)"
CUT = "q, k, v = self.split(q), self.split(k), self.split(v)"
SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)"
AXIS = "mask = mask.unsqueeze(1) if mask.dim() == 3 else mask"
FILL = 'scores = scores.masked_fill(mask == 0, float("-inf"))'
WEIGHTS = "weights = self.dropout(scores.softmax(-1))"
MIX = "mixed = weights @ v"
GIVE = "return self.w_o(self.merge(mixed))"
VIEW = f"{SPLIT} -> return x.reshape(x.size(0), self.h, x.size(1), self.d_k)"
JOIN = f"{MERGE} -> return x.reshape(x.size(0), x.size(2), -1)"

LOOP = '''
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("uneven")
        d_k = d_model // num_heads
        self.w_q, self.w_k, self.w_v = (nn.ModuleList(nn.Linear(d_model, d_k) for _ in range(num_heads)) for _ in range(3))
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        outputs = []
        for w_q, w_k, w_v in zip(self.w_q, self.w_k, self.w_v):
            q, k, v = w_q(query), w_k(key), w_v(value)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            outputs.append(self.dropout(scores.softmax(-1)) @ v)
        return self.w_o(torch.cat(outputs, dim=-1))
'''

RENAMED = LAYER.replace("w_q", "to_query").replace("w_k", "to_key").replace("w_v", "to_value").replace("w_o", "out")

_WRONG_LAYERS = [
    ("mha_split_view_directly", [VIEW]),
    ("mha_split_and_merge_view", [VIEW, JOIN]),
    ("mha_merge_view", [JOIN]),
    ("mha_interleaved_both_ways", [f"{SPLIT} -> return x.reshape(x.size(0), x.size(1), self.d_k, self.h).permute(0, 3, 1, 2)", f"{MERGE} -> return x.permute(0, 2, 3, 1).flatten(2)"]),
    ("mha_scale_missing", [f"{SCORES} -> scores = q @ k.mT"]),
    ("mha_scale_num_heads", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(self.h)"]),
    ("mha_scale_d_model", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(query.size(-1))"]),
    ("mha_scale_other", [f"{SCORES} -> scores = q @ k.mT / self.d_k"]),
    ("mha_scale_other", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(k.size(-2))"]),
    ("mha_first_head_only", [f"{CUT} -> q, k, v = (self.split(t)[:, :1].expand(-1, self.h, -1, -1) for t in (q, k, v))"]),
    ("mha_single_head", [f"{CUT} -> q, k, v = q[:, None], k[:, None], v[:, None]", f"{SCORES} -> scores = q @ k.mT / math.sqrt(q.size(-1))"]),
    ("mha_scores_sum_heads", [f"{SCORES} -> scores = torch.einsum('bhqd,bhkd->bqk', q, k)[:, None] / math.sqrt(self.d_k)"]),
    ("mha_softmax_over_heads", [f"{WEIGHTS} -> weights = self.dropout(torch.softmax(scores, dim=1))"]),
    ("mha_softmax_over_queries", [f"{WEIGHTS} -> weights = self.dropout(torch.softmax(scores, dim=2))"]),
    ("mha_heads_averaged", [f"{MERGE} -> return x.mean(1).repeat(1, 1, self.h)"]),
    ("mha_mask_result_dropped", [f"{FILL} -> scores.masked_fill(mask == 0, -1e9)"]),
    ("mha_mask_result_dropped", ["if mask is not None: -> if False:"]),
    ("mha_mask_without_head_axis", [f"{AXIS} -> pass"]),
    ("mha_mask_unsqueeze_0", [f"{AXIS} -> mask = mask.unsqueeze(0)"]),
    ("mha_mask_repeat_folded", [f"{AXIS} -> mask = mask.expand(query.size(0), query.size(1), key.size(1)).repeat(self.h, 1, 1).view(scores.shape)"]),
    ("mha_mask_unsqueeze_3", [f"{AXIS} -> mask = mask.transpose(-2, -1).unsqueeze(1)", f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e9)"]),
    ("mha_mask_inverted_for_sdpa", [f"{FILL} -> scores = scores.masked_fill(mask != 0, -1e9)"]),
    ("mha_mask_inverted_for_sdpa", [f"{MIX} -> mixed = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask == 0)"]),
    ("mha_mask_weak", [f"{FILL} -> scores = scores * mask"]),
    ("mha_mask_weak", [f"{FILL} -> scores = scores.masked_fill(mask == 0, 1e-9)"]),
    ("mha_is_causal_instead_of_mask", [f"{MIX} -> mixed = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)"]),
    ("mha_always_causal", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(self.d_k); scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -1e9)"]),
    ("mha_key_projection_for_all", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = self.w_k(query), self.w_k(key), self.w_k(value)"]),
    ("mha_value_through_w_k", ["self.w_v(value) -> self.w_k(value)"]),
    ("mha_value_through_w_k", ["self.w_k(key) -> self.w_q(key)"]),
    ("mha_projections_swapped", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = self.w_q(query), self.w_v(key), self.w_k(value)"]),
    ("mha_value_is_key_input", ["self.w_v(value) -> self.w_v(key)"]),
    ("mha_wrong_input", ["self.w_k(key) -> self.w_k(query)", "self.w_v(value) -> self.w_v(query)"]),
    ("mha_no_projections", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query, key, value"]),
    ("mha_no_projections", [f"{LINEARS} -> self.w_o = nn.Linear(d_model, d_model)", "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query, key, value"]),
    ("mha_no_output_projection", [f"{GIVE} -> return self.merge(mixed)"]),
    ("mha_no_projections", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query, key, value", f"{GIVE} -> return self.w_o(self.w_v(self.merge(mixed)))"]),
    ("mha_bias_left_out", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query @ self.w_q.weight.T, key @ self.w_k.weight.T, value @ self.w_v.weight.T"]),
    ("mha_weights_first", [f"{GIVE} -> return weights, self.w_o(self.merge(mixed))"]),
    ("mha_bias_left_out", [f"{GIVE} -> return self.merge(mixed) @ self.w_o.weight.T"]),
    ("att_key_value_swapped", ["q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, v, k = self.w_q(query), self.w_k(key), self.w_v(value)"]),
    ("mha_activation_inside", [f"{MIX} -> mixed = F.relu(weights @ v)"]),
    ("mha_interleaved_both_ways+mha_mask_inverted_for_sdpa", [f"{MERGE} -> return x.permute(0, 2, 3, 1).flatten(2)", f"{FILL} -> scores = scores.masked_fill(mask, -1e9)"]),
    ("mha_output_projection_twice", [f"{GIVE} -> return self.w_o(self.w_o(self.merge(mixed)))"]),
    ("mha_residual_inside", [f"{GIVE} -> return self.w_o(self.merge(mixed)) + query"]),
    ("mha_residual_and_norm_inside", [f"{DROPOUT} -> self.dropout = nn.Dropout(dropout); self.norm = nn.LayerNorm(d_model)", f"{GIVE} -> return self.norm(query + self.w_o(self.merge(mixed)))"]),
    ("mha_activation_inside", [f"{GIVE} -> return self.w_o(self.merge(mixed)).relu()"]),
    ("mha_full_width_heads", [f"{WIDTH} -> self.h, self.d_k = num_heads, d_model", f"{LINEARS} -> self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_model * num_heads) for _ in range(3)); self.w_o = nn.Linear(d_model * num_heads, d_model)"]),
    ("mha_split_then_small_linear", [f"{LINEARS} -> self.w_q, self.w_k, self.w_v = (nn.Linear(self.d_k, self.d_k) for _ in range(3)); self.w_o = nn.Linear(d_model, d_model)", "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query, key, value", f"{CUT} -> q, k, v = self.w_q(self.split(q)), self.w_k(self.split(k)), self.w_v(self.split(v))"]),
    ("mha_one_head_for_k_and_v", [f"{LINEARS} -> self.w_q, self.w_o = (nn.Linear(d_model, d_model) for _ in range(2)); self.w_k, self.w_v = (nn.Linear(d_model, self.d_k) for _ in range(2))", f"{CUT} -> q, k, v = self.split(q), k[:, None], v[:, None]"]),
    ("mha_no_parameters", [f"{LINEARS} -> self.all = [nn.Linear(d_model, d_model) for _ in range(4)]", "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = (f(x) for f, x in zip(self.all, (query, key, value)))", f"{GIVE} -> return self.all[3](self.merge(mixed))"]),
    ("mha_shared_linear", [f"{LINEARS} -> self.w_q = self.w_k = self.w_v = self.w_o = nn.Linear(d_model, d_model)", "self.w_v(value) -> self.w_v(key)"]),
    ("mha_batch_size_stored", [f"{SPLIT} -> return x.reshape(3, -1, self.h, self.d_k).transpose(1, 2)"]),
    ("mha_batch_size_stored", [f"{MERGE} -> return x.transpose(1, 2).reshape(2, -1, self.h * self.d_k)"]),
    ("mha_fixed_context_buffer", [f"{DROPOUT} -> self.dropout = nn.Dropout(dropout); self.register_buffer('seen', torch.ones(5, 5) == 1)", f"{WEIGHTS} -> weights = self.dropout(scores.masked_fill(~self.seen, -1e9).softmax(-1))"]),
    ("mha_fixed_context_buffer", [f"{DROPOUT} -> self.dropout = nn.Dropout(dropout); self.place = torch.zeros(8, 8)", f"{WEIGHTS} -> weights = self.dropout((scores + self.place).softmax(-1))"]),
    ("mha_dropout_never", [f"{WEIGHTS} -> weights = scores.softmax(-1)"]),
    ("mha_dropout_never", [f"{DROPOUT} -> self.dropout = nn.Dropout(0.0)"]),
    ("mha_dropout_zeroed_forever", [f"{WEIGHTS} -> self.dropout.p = self.dropout.p if self.training else 0.0; weights = self.dropout(scores.softmax(-1))"]),
    ("mha_dropout_functional_always_on", [f"{WEIGHTS} -> weights = F.dropout(scores.softmax(-1), self.dropout.p)"]),
    ("mha_dropout_functional_always_on", [f"{WEIGHTS} -> weights = F.dropout(scores.softmax(-1), p=self.dropout.p, training=True)"]),
    ("mha_dropout_created_in_forward", [f"{WEIGHTS} -> weights = nn.Dropout(self.dropout.p)(scores.softmax(-1))"]),
    ("mha_sdpa_dropout_in_eval", [f"{MIX} -> mixed = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask.bool(), self.dropout.p)"]),
    ("mha_indivisible_accepted", [f"{ASSERT} -> pass", f"{LINEARS} -> w = num_heads * self.d_k; self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, w) for _ in range(3)); self.w_o = nn.Linear(w, d_model)"]),
    ("no_such_attribute", [f"{CUT} -> q, k, v = self.cut(q), self.split(k), self.split(v)"]),
    ("returned_none", [f"{GIVE} -> self.w_o(self.merge(mixed))"]),
]

WRONG = (
    [Answer("multi_head_attention", "MultiHeadAttention", edit(LAYER, *changes), id) for id, changes in _WRONG_LAYERS]
    + [
        Answer("multi_head_attention", "MultiHeadAttention", edit(LOOP, *changes), id)
        for id, changes in [
            (
                "mha_rebinds_query_in_loop",
                [
                    "q, k, v = w_q(query), w_k(key), w_v(value) -> query, key, value = w_q(query), w_k(key), w_v(value)",
                    "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) -> scores = query @ key.mT / math.sqrt(query.size(-1))",
                    "outputs.append(self.dropout(scores.softmax(-1)) @ v) -> outputs.append(self.dropout(scores.softmax(-1)) @ value)",
                ],
            ),
            ("mha_scale_missing", ["scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) -> scores = q @ k.mT"]),
            ("mha_value_is_key_input", ["w_v(value) -> w_v(key)"]),
        ]
    ]
    + [
        Answer("multi_head_attention", "MultiHeadAttention", edit(RENAMED, *changes), id)
        for id, changes in [
            ("mha_scale_missing", [f"{SCORES} -> scores = q @ k.mT"]),
            ("mha_split_view_directly", [VIEW]),
            ("mha_mask_without_head_axis", [f"{AXIS} -> pass"]),
            ("mha_dropout_never", [f"{WEIGHTS} -> weights = scores.softmax(-1)"]),
        ]
    ]
)

_FUSED = [
    f"{LINEARS} -> self.qkv, self.w_o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)",
    "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)))",
]
_CLONED = [
    f"{LINEARS} -> self.linears = nn.ModuleList(copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4))",
    "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = (f(x) for f, x in zip(self.linears, (query, key, value)))",
    f"{GIVE} -> return self.linears[-1](self.merge(mixed))",
]
_RAW = [
    f"{LINEARS} -> self.m = nn.ParameterList(nn.Parameter(torch.randn(d_model, d_model)) for _ in range(4))",
    "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value) -> q, k, v = query @ self.m[0], key @ self.m[1], value @ self.m[2]",
    f"{GIVE} -> return self.merge(mixed) @ self.m[3]",
]
_PROJECT = "q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)"
_KEY_VALUE = [
    f"{LINEARS} -> self.ask, self.both, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model), nn.Linear(d_model, d_model)",
    f"{_PROJECT} -> q, k, v = self.ask(query), self.both(key).chunk(2, -1)[0], self.both(value).chunk(2, -1)[1]",
]
_BY_HEAD = [
    f"{LINEARS} -> self.qkv, self.w_o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)",
    f"{_PROJECT} -> q, k, v = (self.qkv(x) for x in (query, key, value))",
    f"{CUT} -> q, k, v = (x.reshape(*x.shape[:2], self.h, 3 * self.d_k).transpose(1, 2).chunk(3, -1)[i] for i, x in enumerate((q, k, v)))",
]
_EINSUM = [
    f"{LINEARS} -> self.m = nn.ParameterList(nn.Parameter(torch.randn(d_model, num_heads, self.d_k)) for _ in range(3)); self.w_o = nn.Linear(d_model, d_model)",
    f"{_PROJECT} -> q, k, v = (torch.einsum('btd,dhk->bhtk', x, m) for x, m in zip((query, key, value), self.m))",
    f"{CUT} -> pass",
]
_STACKED = [
    f"{LINEARS} -> self.m = nn.Parameter(torch.randn(d_model, 3 * d_model)); self.w_o = nn.Linear(d_model, d_model)",
    f"{_PROJECT} -> q, k, v = (x @ m for x, m in zip((query, key, value), self.m.chunk(3, 1)))",
]
_CONVOLVED = [
    f"{LINEARS} -> self.c = nn.ModuleList(nn.Conv1d(d_model, d_model, 1) for _ in range(3)); self.w_o = nn.Linear(d_model, d_model)",
    f"{_PROJECT} -> q, k, v = (c(x.mT).mT for c, x in zip(self.c, (query, key, value)))",
]
_LAYOUTS = (_FUSED, _CLONED, _RAW, _KEY_VALUE, _BY_HEAD, _EINSUM, _STACKED, _CONVOLVED)

WRONG += [
    Answer("multi_head_attention", "MultiHeadAttention", edit(LAYER, *layout, f"{SCORES} -> scores = q @ k.mT{scale}"), id)
    for layout in _LAYOUTS
    for id, scale in (("mha_scale_missing", ""), ("mha_scale_d_model", " / math.sqrt(self.h * self.d_k)"))
]

_INSIDE = '''
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, num_heads, dropout=dropout, batch_first=True)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = ~mask.bool().expand(query.size(0), query.size(1), key.size(1))
            mask = mask.repeat_interleave(self.inner.num_heads, 0)
        return self.inner(query, key, value, attn_mask=mask)
'''

RIGHT = (
    [
        Answer("multi_head_attention", "MultiHeadAttention", edit(LAYER, *changes))
        for changes in (
            [],
            [f"{LINEARS} -> self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))"],
            [f"{LINEARS} -> self.w_q, self.w_k, self.w_v, self.w_o = (nn.LazyLinear(d_model) for _ in range(4))"],
            *_LAYOUTS,
            [f"{FILL} -> scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)"],
            [f"{AXIS} -> mask = mask[:, None]"],
            [f"{WEIGHTS} -> weights = F.dropout(scores.softmax(-1), self.dropout.p, self.training)"],
            [f"{GIVE} -> return self.w_o(self.merge(mixed)), weights"],
            [f"{GIVE} -> return self.dropout(self.w_o(self.merge(mixed)))"],
            [f"{GIVE} -> return [self.w_o(self.merge(mixed)), weights]"],
            [f"{MIX} -> mixed = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask.bool(), self.dropout.p * self.training)"],
            [f"{SPLIT} -> return torch.stack(x.chunk(self.h, -1), 1)"],
            [f"{SPLIT} -> return __import__('einops').rearrange(x, 'b t (h d) -> b h t d', h=self.h)"],
            [f"{SCORES} -> scores = torch.einsum('bhid,bhjd->bhij', q, k) * self.d_k ** -0.5"],
            [f"{ASSERT} -> assert d_model % num_heads == 0; torch.manual_seed(0)"],
        )
    ]
    + [Answer("multi_head_attention", "MultiHeadAttention", source) for source in (LOOP, RENAMED, _INSIDE)]
)

DROPOUTS = [
    ("dropout_not_applied", [f"{base.USED} -> used = weights"]),
    ("dropout_not_applied", [f"{base.USED} -> used = weights; dropout is None or dropout(weights)"]),
    ("dropout_on_scores", [f"{base.SOFTMAX} -> weights = (scores if dropout is None else dropout(scores)).softmax(-1)", f"{base.USED} -> used = weights"]),
    ("dropout_on_output", [f"{base.USED} -> used = weights", f"{base.MIX} -> output = used @ value if dropout is None else dropout(used @ value)"]),
    ("dropout_on_values", [f"{base.USED} -> used = weights", f"{base.MIX} -> output = used @ (value if dropout is None else dropout(value))"]),
    ("dropout_twice", [f"{base.USED} -> used = weights if dropout is None else dropout(dropout(weights))"]),
    ("dropout_renormalised", [f"{base.USED} -> used = weights if dropout is None else F.normalize(dropout(weights), p=1, dim=-1)"]),
    ("scale_missing", [f"{base.SCALE} -> pass"]),
    ("att_softmax_over_queries", [f"{base.SOFTMAX} -> weights = scores.softmax(-2)"]),
    ("dropout_in_two_places", [f"{base.MIX} -> output = used @ value if dropout is None else dropout(used @ value)"]),
    ("dropout_condition_turned", [f"{base.USED} -> used = dropout(weights) if dropout is None else weights"]),
    ("dropout_rate_only", [f"{base.USED} -> used = weights if dropout is None else weights * (1 - dropout.p)"]),
    ("dropout_rate_turned", [f"{base.USED} -> used = weights * (torch.rand_like(weights) < dropout.p).float() / (1 - dropout.p) if dropout and dropout.training else weights"]),
    ("dropout_required", [f"{base.USED} -> used = dropout(weights)"]),
    ("dropout_of_its_own", [f"{base.USED} -> used = weights if dropout is None else F.dropout(weights, dropout.p)"]),
    ("dropout_of_its_own", [f"{base.USED} -> used = weights if dropout is None else nn.Dropout(0.5)(weights)"]),
]

_DROPPED = [
    [],
    [f"{base.USED} -> used = dropout(weights) if dropout else weights"],
    [f"{base.USED} -> used = (dropout or nn.Identity())(weights)"],
    [f"{base.GIVE} -> return output, used"],
]

WRONG += [Answer("dropout", "attention", edit(base.BASE, *c), id) for id, c in DROPOUTS]
RIGHT += [Answer("dropout", "attention", edit(base.BASE, *c)) for c in _DROPPED]
