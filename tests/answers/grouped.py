"""Answers to the exercises of checks/exercises/grouped.py."""

from tests.answers import Answer, edit

LAYER = '''
class GroupedAttention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        if d_model % num_heads or num_heads % num_kv_heads:
            raise ValueError("heads do not fit")
        self.h, self.kv, self.d_k = num_heads, num_kv_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, self.kv * self.d_k)
        self.w_v = nn.Linear(d_model, self.kv * self.d_k)
        self.w_o = nn.Linear(d_model, d_model)

    def cut(self, x, heads):
        return x.view(x.size(0), x.size(1), heads, self.d_k).transpose(1, 2)

    def share(self, x):
        return x.repeat_interleave(self.h // self.kv, dim=1)

    def forward(self, x, mask=None):
        q = self.cut(self.w_q(x), self.h)
        k = self.share(self.cut(self.w_k(x), self.kv))
        v = self.share(self.cut(self.w_v(x), self.kv))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        mixed = scores.softmax(-1) @ v
        return self.w_o(mixed.transpose(1, 2).flatten(2))
'''
CHECK = 'if d_model % num_heads or num_heads % num_kv_heads:\n            raise ValueError("heads do not fit")'
SHARE = "return x.repeat_interleave(self.h // self.kv, dim=1)"
CUT = "return x.view(x.size(0), x.size(1), heads, self.d_k).transpose(1, 2)"
KEY = "k = self.share(self.cut(self.w_k(x), self.kv))"
VALUE = "v = self.share(self.cut(self.w_v(x), self.kv))"
SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)"
FILL = "scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)"
MIXED = "mixed = scores.softmax(-1) @ v"
GIVE = "return self.w_o(mixed.transpose(1, 2).flatten(2))"


def _repeat(line):
    return f"def repeat_heads(x, times):\n    B, h, T, d = x.shape\n    return {line}\n"


def _average(line):
    return f"def average_heads(weight, num_heads, num_kv_heads):\n    rows, width = weight.shape\n    d, times = rows // num_heads, num_heads // num_kv_heads\n    return {line}\n"


WRONG = (
    [
        Answer("repeat_heads", "repeat_heads", _repeat(line), id)
        for id, line in [
            ("repeat_in_turn", "x.repeat(1, times, 1, 1)"),
            ("repeat_in_turn", "torch.cat([x] * times, dim=1)"),
            ("repeat_tokens", "x.repeat_interleave(times, dim=2)"),
            ("repeat_features", "torch.cat([x] * times, dim=-1)"),
            ("repeat_sentences", "x.repeat_interleave(times, dim=0)"),
            ("repeat_first_head", "x[:, :1].repeat(1, h * times, 1, 1)"),
            ("repeat_mean", "x.mean(1, keepdim=True).repeat(1, h * times, 1, 1)"),
            ("repeat_new_axis", "x[:, :, None].expand(B, h, times, T, d)"),
            ("repeat_not_at_all", "x"),
            ("repeat_flat", "x.repeat_interleave(times)"),
            ("repeat_joined_tokens", "torch.cat([x[:, i] for i in range(h) for _ in range(times)], dim=1)"),
            ("repeat_once_too_often", "torch.cat([x] * (times + 1), dim=1)"),
            ("repeat_places_left_empty", "torch.zeros(B, h * times, T, d).index_copy_(1, torch.arange(h) * times, x)"),
            ("axes_exchanged", "torch.stack([x[:, i // times] for i in range(h * times)], 0)"),
            ("stretched_sizes", "x.expand(B, h * times, T, d)"),
            ("repeat_reversed", "x.flip(1).repeat_interleave(times, 1)"),
            ("returned_none", "None"),
        ]
    ]
    + [
        Answer("average_heads", "average_heads", _average(line), id)
        for id, line in [
            ("average_in_turn", "weight.view(times, num_kv_heads, d, width).mean(0).reshape(-1, width)"),
            ("average_sum", "weight.view(num_kv_heads, times, d, width).sum(1).reshape(-1, width)"),
            ("average_first", "weight.view(num_kv_heads, times, d, width)[:, 0].reshape(-1, width)"),
            ("average_first_heads", "weight[: num_kv_heads * d]"),
            ("average_rows", "weight.view(num_kv_heads * d, times, width).mean(1)"),
            ("average_columns", "weight.mean(1)"),
            ("average_all", "torch.cat([weight.view(num_heads, d, width).mean(0)] * num_kv_heads)"),
            ("average_not_joined", "weight.view(num_kv_heads, times, d, width).mean(1)"),
            ("average_counts_exchanged", "weight.unflatten(0, (times, num_kv_heads, d)).mean(1).flatten(0, 1)"),
            ("average_features", "weight.unflatten(0, (num_kv_heads, times, d)).mean(2).flatten(0, 1)"),
            ("average_overlapping", "torch.cat([sum(weight.split(d)[g : g + times]) / times for g in range(num_kv_heads)])"),
            ("average_every_nth_row", "weight[::times]"),
            ("average_largest", "weight.unflatten(0, (num_kv_heads, times, d)).amax(1).flatten(0, 1)"),
            ("average_rows_end_to_end", "weight.unflatten(0, (num_kv_heads, times, d)).mean(1).flatten(1)"),
            ("max_returns_pair", "weight.unflatten(0, (num_kv_heads, times, d)).median(1).flatten(0, 1)"),
            ("joined_no_tensor", "torch.cat([sum(weight.split(num_heads)[g * times : (g + 1) * times]) for g in range(num_heads)])"),
            ("average_nothing", "weight"),
        ]
    ]
    + [
        Answer("grouped_attention", "GroupedAttention", edit(LAYER, *changes), id)
        for id, changes in [
            ("grouped_in_turn", [f"{SHARE} -> return x.repeat(1, self.h // self.kv, 1, 1)"]),
            ("grouped_keys_and_values_apart", [f"{VALUE} -> v = self.cut(self.w_v(x), self.kv).repeat(1, self.h // self.kv, 1, 1)"]),
            ("grouped_first_for_all", [f"{SHARE} -> return x[:, :1].expand(-1, self.h, -1, -1)"]),
            ("grouped_mean_for_all", [f"{SHARE} -> return x.mean(1, keepdim=True).expand(-1, self.h, -1, -1)"]),
            ("grouped_keys_as_wide_as_queries", ["self.w_k = nn.Linear(d_model, self.kv * self.d_k) -> self.w_k = nn.Linear(d_model, d_model)", f"{KEY} -> k = self.cut(self.w_k(x), self.h)"]),
            ("grouped_one_head_each", ["self.w_k = nn.Linear(d_model, self.kv * self.d_k) -> self.w_k = nn.Linear(d_model, self.d_k)"]),
            ("grouped_w_o_too_narrow", ["self.w_o = nn.Linear(d_model, d_model) -> self.w_o = nn.Linear(self.kv * self.d_k, d_model)"]),
            ("grouped_value_is_key", [f"{VALUE} -> v = self.share(self.cut(self.w_k(x), self.kv))"]),
            ("grouped_cut_by_view", [f"{KEY} -> k = self.share(self.w_k(x).view(x.size(0), self.kv, x.size(1), -1))", f"{VALUE} -> v = self.share(self.w_v(x).view(x.size(0), self.kv, x.size(1), -1))"]),
            ("grouped_scale_d_model", [f"{SCORES} -> scores = q @ k.mT / math.sqrt(x.size(-1))"]),
            ("grouped_no_output", [f"{GIVE} -> return mixed.transpose(1, 2).flatten(2)"]),
            ("grouped_mask_without_head_axis", [f"{FILL} -> scores = scores.masked_fill(mask == 0, -1e9)"]),
            ("grouped_uneven_accepted", [f"{CHECK} -> pass", f"{SHARE} -> return x.repeat_interleave(-(-self.h // self.kv), dim=1)[:, : self.h]"]),
            ("grouped_other_error", [f"{CHECK} -> assert d_model % num_heads == 0 and num_heads % num_kv_heads == 0"]),
            ("grouped_sizes_exchanged", ["self.w_k = nn.Linear(d_model, self.kv * self.d_k) -> self.w_k = nn.Linear(self.kv * self.d_k, d_model)"]),
            ("super_missing", ["        super().__init__() -> "]),
            ("first_wrong_step", ["q = self.cut(self.w_q(x), self.h) -> q = self.cut(self.w_q(x) + x, self.h)"]),
            ("scale_missing", [f"{SCORES} -> scores = q @ k.mT"]),
            ("mask_inverted", [f"{FILL} -> scores = scores.masked_fill(mask.unsqueeze(1) != 0, -1e9)"]),
            ("att_softmax_over_queries", [f"{MIXED} -> weights = scores.softmax(-2); mixed = weights @ v"]),
        ]
    ]
)

RIGHT = (
    [
        Answer("repeat_heads", "repeat_heads", _repeat(line))
        for line in (
            "x.repeat_interleave(times, dim=1)",
            "x[:, :, None].expand(B, h, times, T, d).reshape(B, h * times, T, d)",
            "torch.stack([x[:, i // times] for i in range(h * times)], 1)",
            "x[:, torch.arange(h * times) // times]",
            "torch.cat([head for head in x.split(1, 1) for _ in range(times)], 1)",
        )
    ]
    + [
        Answer("average_heads", "average_heads", _average(line))
        for line in (
            "weight.view(num_kv_heads, times, d, width).mean(1).reshape(-1, width)",
            "weight.unflatten(0, (num_kv_heads, times, d)).mean(dim=1).flatten(0, 1)",
            "torch.cat([torch.stack(group.split(d)).mean(0) for group in weight.split(times * d)])",
            "torch.einsum('gtdw->gdw', weight.view(num_kv_heads, times, d, width)).reshape(-1, width) / times",
            "weight.reshape(num_kv_heads, times, -1).mean(1).reshape(-1, width)",
        )
    ]
    + [
        Answer("grouped_attention", "GroupedAttention", edit(LAYER, *changes))
        for changes in (
            [],
            [f"{SHARE} -> return x[:, :, None].expand(-1, -1, self.h // self.kv, -1, -1).flatten(1, 2)"],
            [f"{FILL} -> scores = scores.masked_fill(~mask.bool()[:, None], torch.finfo(scores.dtype).min)"],
            [f"{MIXED} -> mixed = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask.bool()[:, None])"],
            ["self.w_k = nn.Linear(d_model, self.kv * self.d_k) -> self.w_k = nn.Linear(d_model, self.kv * self.d_k, bias=False)"],
        )
    ]
)
