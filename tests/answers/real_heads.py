"""Answers to the exercises of checks/exercises/real_heads.py (chapter 14)."""

from tests.answers import Answer
from tests.answers.real import answers

FIND = '''
def find_head(maps, what):
    layers, heads, length, _ = maps.shape
    if what == "back":
        queries = torch.arange(2, length - 1)
        table = maps[:, :, queries, queries - 1].mean(-1)
    else:
        query, key = what
        table = maps[:, :, query, key]
    return divmod(int(table.argmax()), heads)
'''
QUERIES, MEAN, PAIR = "queries = torch.arange(2, length - 1)", "table = maps[:, :, queries, queries - 1].mean(-1)", "table = maps[:, :, query, key]"
PLACE = "return divmod(int(table.argmax()), heads)"
LOOP = '''
def find_head(maps, what):
    best, found = -1.0, None
    for layer in range(maps.shape[0]):
        for head in range(maps.shape[1]):
            table = maps[layer, head]
            if what == "back":
                rows = range(2, table.shape[0] - 1)
                score = sum(table[i, i - 1].item() for i in rows) / len(rows)
            else:
                score = table[what[0], what[1]].item()
            if score > best:
                best, found = score, (layer, head)
    return found
'''

PRUNE = '''
def prune(model, heads):
    width = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        for layer, head in heads:
            dense = model.encoder.layer[layer].attention.output.dense
            dense.weight[:, head * width : (head + 1) * width] = 0
'''
WIDTH, PAIRS_OF = "width = model.config.hidden_size // model.config.num_attention_heads", "for layer, head in heads:"
DENSE, ZERO = "dense = model.encoder.layer[layer].attention.output.dense", "dense.weight[:, head * width : (head + 1) * width] = 0"

WRONG = [
    *answers("find_head", FIND, [
        ("find_query_and_key_swapped", [f"{PAIR} -> table = maps[:, :, key, query]"]),
        ("find_one_ahead", [f"{MEAN} -> table = maps[:, :, queries, queries + 1].mean(-1)"]),
        ("find_one_ahead", [f"{MEAN} -> table = maps.diagonal(1, -2, -1).mean(-1)"]),
        ("find_special_tokens_counted", [f"{QUERIES} -> queries = torch.arange(1, length)"]),
        ("find_special_tokens_counted", [f"{MEAN} -> table = maps.diagonal(-1, -2, -1).mean(-1)"]),
        ("find_special_tokens_counted", [f"{QUERIES} -> queries = torch.arange(1, length - 1)"]),
        ("find_shifted_by_one", [f"{PAIR} -> table = maps[:, :, query + 1, key + 1]"]),
        ("find_head_before_layer", [f"{PLACE} -> layer, head = divmod(int(table.argmax()), heads); return head, layer"]),
        ("find_counted_by_layers", [f"{PLACE} -> return divmod(int(table.argmax()), layers)"]),
        ("find_twelve_heads", [f"{PLACE} -> return divmod(int(table.argmax()), 12)"]),
        ("find_smallest", [f"{PLACE} -> return divmod(int(table.argmin()), heads)"]),
        ("find_heads_averaged", [f"{PLACE} -> return int(table.mean(1).argmax()), int(table.mean(0).argmax())"]),
        ("find_one_cell", [f"{MEAN} -> table = maps[:, :, queries, queries - 1].amax(-1)"]),
        ("find_word_left_out", [f"{QUERIES} -> queries = torch.arange(2, length - 2)"]),
        ("find_another_distance", [f"{MEAN} -> table = maps[:, :, queries, queries - 2].mean(-1)"]),
        ("find_other_diagonal", [f"{MEAN} -> table = maps.diagonal(-1)[..., 1:-1].mean(-1)"]),
        ("find_triangle", [f"{MEAN} -> table = maps[:, :, 2:-1].triu(1).sum((-2, -1))"]),
        ("find_triangle", [f"{MEAN} -> table = maps.tril(-1).mean((-2, -1))"]),
        ("find_every_pair", [f"{MEAN} -> table = maps[:, :, queries][..., queries - 1].mean((-2, -1))"]),
        ("find_pair_as_two_queries", [f"{PAIR} -> table = maps[:, :, what]"]),
        ("find_always_back", [f"{PAIR} -> queries = torch.arange(2, length - 1); table = maps[:, :, queries, queries - 1].mean(-1)"]),
        ("find_counted_from_one", [f"{PLACE} -> layer, head = divmod(int(table.argmax()), heads); return layer + 1, head + 1"]),
        ("find_number_not_taken_apart", [f"{PLACE} -> return table.argmax() // heads, table.argmax()"]),
        ("find_always_the_last", [f"{PLACE} -> return layers - 1, heads - 1"]),
        ("find_other_head", [f"{MEAN} -> table = maps[:, :, queries, queries - 1].std(-1)"]),
        ("not_a_head", [f"{PLACE} -> return table.max(), table.argmax()"]),
        ("not_a_head", [f"{PLACE} -> return table.argmax(0), table.argmax(1)"]),
        ("find_cls", [f"{MEAN} -> table = maps[:, :, queries, 0].mean(-1)"]),
        ("find_largest_anywhere", [f"{MEAN} -> table = maps.amax(dim=(-2, -1))"]),
        ("not_a_head", [f"{PLACE} -> return int(table.argmax())"]),
    ]),
    *answers("prune", PRUNE, [
        ("prune_rows", [f"{ZERO} -> dense.weight[head * width : (head + 1) * width] = 0"]),
        ("prune_value_bias_left", [f"{ZERO} -> model.encoder.layer[layer].attention.self.value.weight[head * width : (head + 1) * width] = 0"]),
        ("prune_looks_everywhere", [f"{ZERO} -> q = model.encoder.layer[layer].attention.self.query; q.weight[head * width : (head + 1) * width] = 0; q.bias[head * width : (head + 1) * width] = 0"]),
        ("prune_looks_everywhere", [f"{ZERO} -> model.encoder.layer[layer].attention.self.key.weight[head * width : (head + 1) * width] = 0"]),
        ("prune_width_fixed", [f"{WIDTH} -> width = 32"]),
        ("prune_one_column", [f"{ZERO} -> dense.weight[:, head] = 0"]),
        ("prune_feed_forward", [f"{DENSE} -> dense = model.encoder.layer[layer].output.dense"]),
        ("prune_whole_layer", [f"{ZERO} -> dense.weight.zero_()"]),
        ("prune_bias_too", [f"{ZERO} -> dense.weight[:, head * width : (head + 1) * width] = 0; dense.bias[head * width : (head + 1) * width] = 0"]),
        ("prune_head_before_layer", [f"{PAIRS_OF} -> for head, layer in heads:"]),
        ("prune_one_of_them", [f"{ZERO} -> dense.weight[:, head * width : (head + 1) * width] = 0; return"]),
        ("prune_shifted_by_one", [f"{ZERO} -> dense.weight[:, (head - 1) * width : head * width] = 0"]),
        ("prune_other_cells", [f"{WIDTH} -> width = model.config.num_attention_heads"]),
        ("prune_other_cells", [f"{ZERO} -> dense.weight[:, head :: model.config.num_attention_heads] = 0"]),
        ("prune_other_cells", [f"{ZERO} -> dense.weight[:, head * width : (head + 1) * width].neg_()"]),
        ("prune_one_of_them", [f"{PAIRS_OF} -> for layer, head in [heads[0]]:"]),
        ("prune_nothing", [f"{WIDTH} -> model = copy.deepcopy(model); width = model.config.hidden_size // model.config.num_attention_heads"]),
        ("prune_nothing", [f"{ZERO} -> dense.weight[:, head * width : (head + 1) * width].clone().zero_()"]),
        ("prune_grad_mode", ["with torch.no_grad(): -> if True:"]),
    ]),
]

RIGHT = [
    *answers("find_head", FIND, [
        (None, []),
        (None, [f"{MEAN} -> table = maps.diagonal(-1, -2, -1)[..., 1:-1].mean(-1)"]),
        (None, [f"{MEAN} -> table = maps[:, :, queries, queries - 1].sum(-1)"]),
        (None, [f"{PLACE} -> place = torch.nonzero(table == table.max())[0]; return place[0], place[1]"]),
        (None, [f"{PLACE} -> return torch.tensor(divmod(int(table.argmax()), heads))"]),
        (None, [f"{PLACE} -> return [int(i) for i in torch.unravel_index(table.argmax(), table.shape)]"]),
    ]),
    Answer("find_head", "find_head", LOOP),
    *answers("prune", PRUNE, [
        (None, []),
        (None, [f"{ZERO} -> dense.weight.view(dense.weight.size(0), -1, width)[:, head] = 0"]),
        (None, [f"{ZERO} -> dense.weight.data[:, head * width : (head + 1) * width].zero_()"]),
        (None, [f"{ZERO} -> mask = torch.ones_like(dense.weight); mask[:, head * width : (head + 1) * width] = 0; dense.weight.mul_(mask)"]),
        (None, [f"{ZERO} -> v = model.encoder.layer[layer].attention.self.value; v.weight[head * width : (head + 1) * width] = 0; v.bias[head * width : (head + 1) * width] = 0"]),
        (None, [f"{WIDTH} -> width = model.encoder.layer[0].attention.self.attention_head_size"]),
    ]),
    Answer("find_head", "find_head", """
def find_head(maps, what):
    pick = torch.zeros(maps.shape[-2:])
    rows = torch.arange(2, maps.size(-1) - 1)
    places = (rows, rows - 1) if what == "back" else what
    pick[places[0], places[1]] = 1
    table = torch.einsum("lhqk,qk->lh", maps, pick)
    layer = table.amax(1).argmax()
    return int(layer), int(table[layer].argmax())
"""),
    Answer("prune", "prune", """
def prune(model, heads):
    width = model.config.hidden_size // model.config.num_attention_heads
    for layer, head in heads:
        def hide(module, given, head=head):
            x = given[0].clone()
            x[..., head * width : (head + 1) * width] = 0
            return (x, *given[1:])
        model.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(hide)
"""),
]
