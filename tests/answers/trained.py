"""Answers to the exercises of chapter 8: reading heads, switching them off, training a layer of one's own."""

from tests.answers import Answer, edit

LOOKS = '''
def looks_back(weights, back):
    seen = torch.diagonal(weights, offset=-back, dim1=-2, dim2=-1)
    return seen.mean(dim=(0, -1))
'''
SEEN = "seen = torch.diagonal(weights, offset=-back, dim1=-2, dim2=-1)"
MEAN = "return seen.mean(dim=(0, -1))"

OFF = '''
def switch_off(layer, head):
    columns = slice(head * layer.d_k, (head + 1) * layer.d_k)
    with torch.no_grad():
        layer.w_o.weight[:, columns] = 0
'''
COLUMNS = "columns = slice(head * layer.d_k, (head + 1) * layer.d_k)"
ZERO = "layer.w_o.weight[:, columns] = 0"

WITHOUT = '''
from mha_lib.experiments import lookups

def accuracy_without(model, head):
    layer = model.attention
    kept = layer.w_o.weight.detach().clone()
    with torch.no_grad():
        layer.w_o.weight[:, head * layer.d_k : (head + 1) * layer.d_k] = 0
        result = lookups.accuracy(model)
        layer.w_o.weight.copy_(kept)
    return result
'''
KEPT = "kept = layer.w_o.weight.detach().clone()"
CUT = "layer.w_o.weight[:, head * layer.d_k : (head + 1) * layer.d_k] = 0"
MEASURE = "result = lookups.accuracy(model)"
BACK = "layer.w_o.weight.copy_(kept)"
RETURN = "return result"

MINE = '''
import mha_lib
from mha_lib.experiments import lookups

class MyAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = (mha_lib.split_heads(x, self.num_heads) for x in (self.w_q(query), self.w_k(key), self.w_v(value)))
        heads, weights = mha_lib.attention(q, k, v, mask)
        self.attn = weights.detach()
        return self.w_o(mha_lib.merge_heads(heads))

def train_mine():
    torch.manual_seed(0)
    model = lookups.Lookups(32, 2)
    model.attention = MyAttention(32, 2)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(400):
        tokens = lookups.draw(64, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 2), lookups.targets(tokens).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.005:
            break
    return model
'''
ATTN = "self.attn = weights.detach()"
BUILD = "model.attention = MyAttention(32, 2)"
MODEL = "model = lookups.Lookups(32, 2)"
STOP = "if loss.item() < 0.005:"

WRONG = [
    Answer("looks_back", "looks_back", edit(LOOKS, *changes), id)
    for id, changes in [
        ("looks_ahead", [f"{SEEN} -> seen = torch.diagonal(weights, offset=back, dim1=-2, dim2=-1)"]),
        ("looks_ahead", [f"{SEEN} -> seen = torch.diagonal(weights.transpose(-2, -1), offset=-back, dim1=-2, dim2=-1)"]),
        ("looks_around_the_end", [f"{SEEN} -> here = torch.arange(weights.size(-1)); seen = weights[:, :, here, (here - back) % len(here)]"]),
        ("looks_divided_by_all", [f"{MEAN} -> return seen.sum(-1).mean(0) / weights.size(-1)"]),
        ("looks_summed", [f"{MEAN} -> return seen.sum(dim=(0, -1))"]),
        ("looks_summed", [f"{MEAN} -> return seen.mean(0).sum(-1)"]),
        ("looks_heads_averaged", [f"{MEAN} -> return seen.mean()"]),
        ("looks_heads_averaged", [f"{MEAN} -> return seen.mean(dim=(1, -1))"]),
        ("looks_sentences_apart", [f"{MEAN} -> return seen.mean(-1)"]),
        ("looks_first_sentence", [f"{MEAN} -> return seen[0].mean(-1)"]),
        ("looks_queries_apart", [f"{MEAN} -> return seen.mean(0)"]),
        ("looks_through_other_axes", [f"{SEEN} -> seen = torch.diagonal(weights, offset=-back)"]),
        ("looks_through_other_axes", [f"{SEEN} -> seen = weights.diagonal(-back)", f"{MEAN} -> return seen.mean(0)"]),
        ("looks_through_other_axes", [f"{SEEN} -> seen = torch.diagonal(weights, offset=-back, dim1=1, dim2=2)"]),
        ("looks_mean_over_cells", [f"{SEEN} -> seen = weights.tril(-back) - weights.tril(-back - 1)", f"{MEAN} -> return seen.mean(dim=(0, 2, 3))"]),
        ("looks_from_the_next_query", [f"{SEEN} -> seen = torch.stack([weights[:, :, i, i - back] for i in range(back + 1, weights.size(-1))], dim=-1) if weights.size(-1) > back + 1 else weights[..., :0, 0]"]),
        ("looks_divided_by_heads", [f"{MEAN} -> return seen.sum(dim=(0, -1)) / (seen.size(1) * seen.size(2))"]),
        ("looks_at_a_block", [f"{SEEN} -> seen = weights[:, :, back:, :-back].flatten(2)"]),
        ("looks_at_one_column", [f"{SEEN} -> seen = weights[:, :, back:, back]"]),
        ("looks_queries_apart", [f"{MEAN} -> return seen.mean(dim=(0, 1))"]),
        ("looks_largest", [f"{MEAN} -> return seen.median(-1).values.mean(0)"]),
        ("index_behind_the_end", [f"{SEEN} -> seen = torch.stack([weights[:, :, i, i + back] for i in range(weights.size(-1))], dim=-1)"]),
        ("looks_whole_table", [f"{MEAN} -> return weights.mean(dim=(0, 2, 3))"]),
        ("looks_one_off", [f"{SEEN} -> seen = torch.diagonal(weights, offset=-(back - 1), dim1=-2, dim2=-1)"]),
        ("looks_always_one_back", [f"{SEEN} -> seen = torch.diagonal(weights, offset=-1, dim1=-2, dim2=-1)"]),
        ("looks_all_before", [f"{SEEN} -> seen = weights.tril(-back).sum(-1)"]),
        ("looks_counted", [f"{SEEN} -> T = weights.size(-1); seen = (weights.argmax(-1)[..., back:] == torch.arange(T - back)).float()"]),
        ("looks_largest", [f"{MEAN} -> return seen.amax(dim=(0, -1))"]),
        ("returned_none", [f"{MEAN} -> seen.mean(dim=(0, -1))"]),
    ]
] + [
    Answer("switch_off", "switch_off", edit(OFF, *changes), id)
    for id, changes in [
        ("off_rows", [f"{ZERO} -> layer.w_o.weight[columns] = 0"]),
        ("off_bias_too", [f"{ZERO} -> layer.w_o.weight[:, columns] = 0; layer.w_o.bias.zero_()"]),
        ("off_bias_too", [f"{ZERO} -> layer.w_o.weight[:, columns] = 0; layer.w_o.bias[columns] = 0"]),
        ("off_rows", [f"{ZERO} -> layer.w_o.weight[head] = 0"]),
        ("off_one_column_left", [f"{COLUMNS} -> columns = slice(head * layer.d_k, (head + 1) * layer.d_k - 1)"]),
        ("off_input_features", [f"{ZERO} -> layer.w_v.weight[:, columns] = 0"]),
        ("off_weakened", [f"{ZERO} -> layer.w_o.weight[:, columns] *= 0.5"]),
        ("off_one_column", [f"{ZERO} -> layer.w_o.weight[:, head] = 0"]),
        ("off_interleaved", [f"{ZERO} -> layer.w_o.weight[:, head :: layer.num_heads] = 0"]),
        ("off_width_is_count", [f"{COLUMNS} -> columns = slice(head * layer.num_heads, (head + 1) * layer.num_heads)"]),
        ("off_same_head_always", [f"{COLUMNS} -> columns = slice(0, layer.d_k)"]),
        ("off_from_there_on", [f"{COLUMNS} -> columns = slice(head * layer.d_k, None)"]),
        ("off_the_others", [f"{ZERO} -> kept = layer.w_o.weight[:, columns].clone(); layer.w_o.weight.zero_(); layer.w_o.weight[:, columns] = kept"]),
        ("off_all", [f"{ZERO} -> layer.w_o.weight.zero_()"]),
        ("off_a_neighbour", [f"{COLUMNS} -> columns = slice((head - 1) * layer.d_k, head * layer.d_k)"]),
        ("off_queries", [f"{ZERO} -> layer.w_q.weight[columns] = 0; layer.w_q.bias[columns] = 0"]),
        ("off_values_bias_left", [f"{ZERO} -> layer.w_v.weight[columns] = 0"]),
        ("off_nothing", [f"{ZERO} -> weight = layer.w_o.weight.clone(); weight[:, columns] = 0"]),
        ("off_nothing", [f"{ZERO} -> copy.deepcopy(layer).w_o.weight[:, columns] = 0"]),
        ("off_in_a_copy", [f"{ZERO} -> layer = copy.deepcopy(layer); layer.w_o.weight[:, columns] = 0; return layer"]),
        ("off_grad_mode", ["    with torch.no_grad(): ->     if True:"]),
    ]
] + [
    Answer("accuracy_without", "accuracy_without", edit(WITHOUT, *changes), id)
    for id, changes in [
        ("not_put_back", [f"{BACK} -> pass"]),
        ("not_put_back", [f"{KEPT} -> kept = layer.w_o.weight"]),
        ("not_put_back", [f"{KEPT} -> kept = layer.state_dict()['w_o.weight']"]),
        ("hook_left", [f"{CUT} -> keep = torch.ones(layer.d_model); keep[head * layer.d_k : (head + 1) * layer.d_k] = 0; layer.w_o.register_forward_pre_hook(lambda m, given: (given[0] * keep,))"]),
        ("mode_left", [f"{MEASURE} -> result = lookups.accuracy(model.eval())"]),
        ("mode_left", [f"{MEASURE} -> result = lookups.accuracy(model.requires_grad_(False))"]),
        ("without_nothing_off", [f"{CUT} -> pass"]),
        ("without_nothing_off", [f"{MEASURE} -> layer.w_o.weight.copy_(kept); result = lookups.accuracy(model)"]),
        ("without_the_others", [f"{CUT} -> cols = slice(head * layer.d_k, (head + 1) * layer.d_k); layer.w_o.weight.zero_(); layer.w_o.weight[:, cols] = kept[:, cols]"]),
        ("without_all", [f"{CUT} -> layer.w_o.weight.zero_()"]),
        ("without_a_neighbour", [f"{CUT} -> other = (head + 1) % layer.num_heads; layer.w_o.weight[:, other * layer.d_k : (other + 1) * layer.d_k] = 0"]),
        ("without_loss_of_accuracy", [f"{RETURN} -> return [x - y for x, y in zip(lookups.accuracy(model), result)]"]),
        ("without_rows", [f"{CUT} -> layer.w_o.weight[head * layer.d_k : (head + 1) * layer.d_k] = 0"]),
        ("without_swapped", [f"{RETURN} -> return result[::-1]"]),
        ("without_one_column", [f"{CUT} -> layer.w_o.weight[:, head] = 0"]),
        ("without_from_there_on", [f"{CUT} -> layer.w_o.weight[:, head * layer.d_k :] = 0"]),
        ("without_share_wrong", [f"{RETURN} -> return [1 - share for share in result]"]),
        ("without_percent", [f"{RETURN} -> return [100 * share for share in result]"]),
        ("one_share", [f"{RETURN} -> return sum(result) / 2"]),
        ("returned_none", [f"{RETURN} -> print(result)"]),
    ]
] + [
    Answer("two_diagonals", "train_mine", edit(MINE, *changes), id)
    for id, changes in [
        ("course_layer", [f"{BUILD} -> pass"]),
        ("weights_not_kept", [f"{ATTN} -> pass"]),
        ("weights_not_kept", [f"{ATTN} -> self.weights = weights.detach()"]),
        ("weights_averaged", [f"{ATTN} -> self.attn = weights.detach().mean(dim=1)"]),
        ("weights_of_another_call", ["        self.num_heads = num_heads ->         self.num_heads, self.attn = num_heads, None", f"{ATTN} -> self.attn = weights.detach() if self.attn is None else self.attn"]),
        ("not_two_heads", [f"{BUILD} -> model.attention = MyAttention(32, 4)"]),
        ("scores_kept", [f"{ATTN} -> self.attn = (q @ k.transpose(-2, -1)).detach()"]),
        ("not_trained", ["        optimiser.step() ->         pass", "range(400) -> range(20)"]),
        ("not_trained", [f"    {BUILD} ->     pass", "    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2) ->     optimiser = torch.optim.Adam(model.attention.parameters(), lr=1e-5); model.attention = MyAttention(32, 2)", "range(400) -> range(20)"]),
        ("got_stuck", ["loss = F.cross_entropy(model(tokens).flatten(0, 2), lookups.targets(tokens).flatten()) -> loss = F.cross_entropy(model(tokens)[:, :, 0].flatten(0, 1), lookups.targets(tokens)[..., 0].flatten())"]),
        ("stopped_early", ["range(400) -> range(22)"]),
        ("no_diagonals", [f"{ATTN} -> self.attn = weights.detach().flip(-1)"]),
        ("not_a_model", ["    return model -> return loss.item()".replace("return loss", "    return loss")]),
        ("not_a_model", ["    return model -> ".rstrip(" ") + "     print(loss.item())"]),
        ("too_slow", [f"{STOP} -> if False:", "range(400) -> range(100_000)"]),
    ]
]

RIGHT = [
    Answer("looks_back", "looks_back", edit(LOOKS, *changes))
    for changes in (
        [],
        [f"{MEAN} -> return seen.mean(-1).mean(0)"],
        [f"{SEEN} -> T = weights.size(-1); seen = weights[..., torch.arange(back, T), torch.arange(T - back)]"],
        [f"{SEEN} -> seen = torch.stack([weights[:, :, i, i - back] for i in range(back, weights.size(-1))], dim=-1)"],
        [f"{MEAN} -> return torch.stack([seen[:, h].mean() for h in range(weights.size(1))])"],
        [f"{SEEN} -> mask = torch.ones(weights.shape[-2:]).tril(-back).triu(-back).bool(); seen = weights[..., mask]"],
    )
] + [
    Answer("switch_off", "switch_off", edit(OFF, *changes))
    for changes in (
        [],
        ["    with torch.no_grad(): ->     if True:", f"{ZERO} -> layer.w_o.weight.data[:, columns] = 0"],
        [f"{ZERO} -> layer.w_v.weight[columns] = 0; layer.w_v.bias[columns] = 0"],
        [f"{ZERO} -> keep = torch.ones(layer.d_model); keep[columns] = 0; layer.w_o.weight.mul_(keep)"],
        [f"{ZERO} -> layer.w_o.weight.view(-1, layer.num_heads, layer.d_k)[:, head] = 0"],
        [f"{ZERO} -> layer.w_o.weight[:, columns] = 0; return layer"],
        [f"{COLUMNS} -> keep = torch.ones(layer.d_model); keep[head * layer.d_k : (head + 1) * layer.d_k] = 0", f"{ZERO} -> layer.w_o.register_forward_pre_hook(lambda m, given: (given[0] * keep,))"],
        [f"{ZERO} -> blocks = list(layer.w_o.weight.split(layer.d_k, dim=1)); blocks[head] = torch.zeros_like(blocks[head]); layer.w_o.weight.copy_(torch.cat(blocks, dim=1))"],
    )
] + [
    Answer("accuracy_without", "accuracy_without", edit(WITHOUT, *changes))
    for changes in (
        [],
        [f"{RETURN} -> return tuple(result)"],
        [f"{RETURN} -> return torch.tensor(result)"],
        [f"{KEPT} -> kept = copy.deepcopy(layer.state_dict())", f"{BACK} -> layer.load_state_dict(kept)"],
        [f"{CUT} -> pass", f"{MEASURE} -> other = copy.deepcopy(model); other.attention.w_o.weight[:, head * layer.d_k : (head + 1) * layer.d_k] = 0; result = lookups.accuracy(other)"],
        [f"{CUT} -> keep = torch.ones(layer.d_model); keep[head * layer.d_k : (head + 1) * layer.d_k] = 0; hook = layer.w_o.register_forward_pre_hook(lambda m, given: (given[0] * keep,))", f"{BACK} -> hook.remove()"],
        [f"{MEASURE} -> tokens = lookups.draw(400, torch.Generator().manual_seed(5)); result = (model(tokens).argmax(-1) == lookups.targets(tokens)).float().mean((0, 1))"],
    )
] + [
    Answer("two_diagonals", "train_mine", edit(MINE, *changes))
    for changes in (
        [],
        [f"{ATTN} -> self.attn = weights"],
        ["    torch.manual_seed(0)\n -> \n", "lr=1e-2 -> lr=5e-3"],
        [f"{MODEL} -> model = lookups.Lookups(32, 2)\n    model.train()", "    return model -> ".rstrip(" ") + "     return model.eval()"],
        [f"{BUILD} -> model.attention = MyAttention(32, num_heads=2)", "optimiser = torch.optim.Adam(model.parameters(), lr=1e-2) -> optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)"],
        [f"{STOP} -> if step == 150:"],
    )
]
