"""Answers to the exercises of checks/exercises/two_layers.py."""

from tests.answers import Answer, edit

BLOCK = '''
class Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        from mha_lib import MultiHeadAttention
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x, mask=None):
        n = self.norm_1(x)
        x = x + self.attention(n, n, n, mask)
        return x + self.feed_forward(self.norm_2(x))
'''
NORMS = "self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)"
FEED = "self.feed_forward = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))"
NORMED = "n = self.norm_1(x)"
SUM = "x = x + self.attention(n, n, n, mask)"
GIVE = "return x + self.feed_forward(self.norm_2(x))"

SCORE = '''
def induction_score(weights, period):
    T = weights.size(-1)
    places = torch.arange(period, T)
    looked = weights[:, :, places, places - period + 1]
    return looked.mean(dim=(0, 2))
'''
PLACES = "places = torch.arange(period, T)"
LOOKED = "looked = weights[:, :, places, places - period + 1]"
MEAN = "return looked.mean(dim=(0, 2))"

OFF = '''
def switch_off_and_see(model, number, head, measure):
    layer = model.layers[number]
    columns = slice(head * layer.d_k, (head + 1) * layer.d_k)
    before = measure(model)
    with torch.no_grad():
        kept = layer.w_o.weight.clone()
        layer.w_o.weight[:, columns] = 0
        after = measure(model)
        layer.w_o.weight.copy_(kept)
    return before, after
'''
CLEAR = "layer.w_o.weight[:, columns] = 0"
RETURN = "return before, after"

WRONG = (
    [
        Answer("block", "Block", edit(BLOCK, *changes), id)
        for id, changes in [
            ("block_post_norm", [f"{NORMED} -> n = x", f"{SUM} -> x = self.norm_1(x + self.attention(n, n, n, mask))", f"{GIVE} -> return self.norm_2(x + self.feed_forward(x))"]),
            ("block_no_residual", [f"{SUM} -> x = self.attention(n, n, n, mask)"]),
            ("block_no_residual", [f"{GIVE} -> return self.feed_forward(self.norm_2(x))"]),
            ("block_adds_the_normed", [f"{NORMED} -> x = n = self.norm_1(x)"]),
            ("block_adds_the_normed", [f"{GIVE} -> x = self.norm_2(x); return x + self.feed_forward(x)"]),
            ("block_shared_norm", [f"{GIVE} -> return x + self.feed_forward(self.norm_1(x))"]),
            ("block_shared_norm", [f"{NORMS} -> self.norm_1 = self.norm_2 = nn.LayerNorm(d_model)"]),
            ("block_norms_exchanged", [f"{NORMED} -> n = self.norm_2(x)", f"{GIVE} -> return x + self.feed_forward(self.norm_1(x))"]),
            ("block_norm_missing", [f"{NORMED} -> n = x"]),
            ("block_norm_missing", [f"{GIVE} -> return x + self.feed_forward(x)"]),
            ("block_norm_over_tokens", [f"{NORMED} -> n = F.layer_norm(x.mT, (x.size(1),)).mT"]),
            ("block_side_by_side", [f"{SUM} -> a = self.attention(n, n, n, mask)", f"{GIVE} -> return x + a + self.feed_forward(self.norm_2(x))"]),
            ("block_feed_first", [f"{NORMED} -> x = x + self.feed_forward(self.norm_1(x)); n = self.norm_2(x)", f"{GIVE} -> return x"]),
            ("block_mask_lost", [f"{SUM} -> x = x + self.attention(n, n, n)"]),
            ("block_query_normed_alone", [f"{SUM} -> x = x + self.attention(n, x, x, mask)"]),
            ("block_query_normed_alone", [f"{SUM} -> x = x + self.attention(n, n, x, mask)"]),
            ("block_post_norm", [f"{GIVE} -> return self.norm_2(x + self.feed_forward(x))"]),
            ("block_norm_behind", [f"{GIVE} -> return x + self.norm_2(self.feed_forward(x))"]),
            ("block_first_sum_lost", [f"{SUM} -> y = x + self.attention(n, n, n, mask)", f"{GIVE} -> return x + self.feed_forward(self.norm_2(y))"]),
            ("block_sum_doubled", [f"{GIVE} -> return 2 * x + self.feed_forward(self.norm_2(x))"]),
            ("block_always_causal", [f"{SUM} -> from mha_lib import causal_mask; x = x + self.attention(n, n, n, causal_mask(x.size(1)) if mask is None else mask)"]),
            ("block_no_layer_norm", [f"{NORMS} -> self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.RMSNorm(d_model)"]),
            ("refused_by_library", [f"{NORMS} -> self.norm_1, self.norm_2 = nn.BatchNorm1d(d_model), nn.BatchNorm1d(d_model)"]),
            ("linear_does_not_fit", [f"{FEED} -> self.feed_forward = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(d_model, d_model))"]),
            ("part_is_no_module", [f"{FEED} -> self.feed_forward = [nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model)]"]),
            ("block_part_unused", [f"{GIVE} -> return x"]),
            ("block_first_sentence", [f"{SUM} -> x = x + self.attention(n, n, n, mask)[0]"]),
            ("block_other_heads", ["MultiHeadAttention(d_model, num_heads) -> MultiHeadAttention(d_model, 2)"]),
            ("block_feed_forward_without_linears", [f"{FEED} -> self.feed_forward = nn.GELU()"]),
            ("block_feed_forward_ends_bent", [f"{FEED} -> self.feed_forward = nn.Sequential(nn.Linear(d_model, 9), nn.GELU(), nn.Linear(9, d_model), nn.GELU())"]),
            ("block_feed_forward_ends_bent", [f"{FEED} -> self.feed_forward = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU())"]),
            ("super_missing", ["        super().__init__()\n -> "]),
            ("block_feed_forward_linear", [f"{FEED} -> self.feed_forward = nn.Linear(d_model, d_model)"]),
            ("parts_missing", [f"{NORMS} -> self.norm_1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)", f"{GIVE} -> return x + self.feed_forward(self.norm2(x))"]),
        ]
    ]
    + [
        Answer("induction_score", "induction_score", edit(SCORE, *changes), id)
        for id, changes in [
            ("induction_one_too_far", [f"{LOOKED} -> looked = weights[:, :, places, places - period]"]),
            ("induction_too_near", [f"{PLACES} -> places = torch.arange(period, T)", f"{LOOKED} -> looked = weights.diagonal(2 - period, dim1=-2, dim2=-1)[..., 1:]"]),
            ("induction_first_period", [f"{PLACES} -> places = torch.arange(period - 1, T)"]),
            ("induction_heads_averaged", [f"{MEAN} -> return looked.mean()"]),
            ("induction_too_far_back", [f"{LOOKED} -> looked = weights[:, :, places, places - period - 1]"]),
            ("induction_begins_late", [f"{PLACES} -> places = torch.arange(period + 1, T)"]),
            ("induction_all_pairs", [f"{LOOKED} -> looked = weights[:, :, places][..., places - period + 1].mean(-1)"]),
            ("induction_axes_of_the_diagonal", [f"{MEAN} -> return weights.diagonal(1 - period).mean(-1).mean(0)"]),
            ("induction_nothing_picked", ["T = weights.size(-1) -> T = weights.size(1)", f"{PLACES} -> places = torch.arange(T)[period:]"]),
            ("induction_summed", [f"{MEAN} -> return looked.mean(dim=2).sum(dim=0)"]),
            ("induction_heads_averaged", [f"{MEAN} -> return looked.mean(dim=(1, 2))"]),
            ("induction_batch_kept", [f"{MEAN} -> return looked.mean(-1)"]),
            ("induction_summed", [f"{MEAN} -> return looked.sum(dim=(0, 2))"]),
            ("induction_divided_by_all", [f"{MEAN} -> return looked.sum(dim=2).mean(0) / T"]),
            ("induction_transposed", [f"{LOOKED} -> looked = weights[:, :, places - period + 1, places]"]),
            ("induction_largest", [f"{MEAN} -> return looked.amax(dim=(0, 2))"]),
            ("induction_previous_token", [f"{LOOKED} -> places = torch.arange(1, T); looked = weights[:, :, places, places - 1]"]),
        ]
    ]
    + [
        Answer("switch_off_and_see", "switch_off_and_see", edit(OFF, *changes), id)
        for id, changes in [
            ("off_not_at_all", [f"{CLEAR} -> pass"]),
            ("off_both_times", [f"{RETURN} -> return after, after"]),
            ("off_in_wrong_order", [f"{RETURN} -> return after, before"]),
            ("off_other_columns", ["slice(head * layer.d_k, (head + 1) * layer.d_k) -> slice(head, head + layer.d_k)"]),
            ("off_other_numbers", [f"{CLEAR} -> layer.w_o.weight[:, columns] = 1"]),
            ("off_second_number", [f"{CLEAR} -> layer.w_o.weight[columns, columns] = 0"]),
            ("off_difference", [f"{RETURN} -> return before, before - after"]),
            ("off_whole_layer", [f"{CLEAR} -> layer.w_o.weight.zero_()"]),
            ("off_other_head", ["columns = slice(head * layer.d_k, (head + 1) * layer.d_k) -> columns = slice((1 - head) * layer.d_k, (2 - head) * layer.d_k)"]),
            ("off_other_layer", ["layer = model.layers[number] -> layer = model.layers[1 - number]"]),
            ("off_rows", [f"{CLEAR} -> layer.w_o.weight[columns] = 0"]),
            ("off_one_column", [f"{CLEAR} -> layer.w_o.weight[:, head] = 0"]),
            ("not_put_back", ["layer.w_o.weight.copy_(kept) -> pass"]),
            ("not_put_back", ["kept = layer.w_o.weight.clone() -> kept = layer.w_o.weight"]),
            ("not_two_numbers", [f"{RETURN} -> return after"]),
        ]
    ]
)

RIGHT = (
    [
        Answer("block", "Block", edit(BLOCK, *changes))
        for changes in (
            [],
            [f"{FEED} -> self.feed_forward = nn.Sequential(nn.Linear(d_model, 7), nn.GELU(), nn.Linear(7, d_model))"],
            [f"{GIVE} -> y = self.norm_2(x); return self.feed_forward(y) + x"],
            [f"{NORMS} -> self.norm_1, self.norm_2 = nn.LayerNorm(d_model, eps=1e-6), nn.LayerNorm(d_model, bias=False)"],
            [f"{SUM} -> said = self.attention(n, n, n, mask=mask); x = said + x"],
        )
    ]
    + [
        Answer("induction_score", "induction_score", edit(SCORE, *changes))
        for changes in (
            [],
            [f"{LOOKED} -> looked = weights.diagonal(1 - period, dim1=-2, dim2=-1)[..., 1:]"],
            [f"{LOOKED} -> looked = torch.stack([weights[:, :, i, i - period + 1] for i in range(period, T)], -1)"],
            [f"{MEAN} -> return looked.mean(-1).mean(0)"],
            [f"{MEAN} -> return looked.flatten(2).transpose(0, 1).flatten(1).mean(1)"],
        )
    ]
    + [
        Answer("switch_off_and_see", "switch_off_and_see", edit(OFF, *changes))
        for changes in (
            [],
            [f"{RETURN} -> return [before, after]"],
            [f"{CLEAR} -> layer.w_o.weight[:, columns].zero_()"],
            [f"{CLEAR} -> layer.w_o.weight.data[:, columns] *= 0"],
            [f"{RETURN} -> return torch.tensor(before), torch.tensor(after)"],
        )
    ]
    + [
        Answer("switch_off_and_see", "switch_off_and_see", source)
        for source in (
            "def switch_off_and_see(model, number, head, measure):\n    twin = copy.deepcopy(model)\n    layer = twin.layers[number]\n"
            "    layer.w_o.weight.data.view(layer.w_o.weight.size(0), -1, layer.d_k)[:, head] = 0\n    return measure(model), measure(twin)\n",
            "def switch_off_and_see(model, number, head, measure):\n    before, layer = measure(model), model.layers[number]\n"
            "    def off(module, given):\n        x = given[0].clone()\n        x[..., head * layer.d_k : (head + 1) * layer.d_k] = 0\n        return (x,)\n"
            "    handle = layer.w_o.register_forward_pre_hook(off)\n    try:\n        return before, measure(model)\n    finally:\n        handle.remove()\n",
        )
    ]
)
