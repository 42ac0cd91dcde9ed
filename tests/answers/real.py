"""Answers to the exercises with the real model."""

from tests.answers import Answer, edit

LOAD = '''
def load_real_weights(layer, bert_attention):
    own = bert_attention.self
    pairs = [(layer.w_q, own.query), (layer.w_k, own.key), (layer.w_v, own.value), (layer.w_o, bert_attention.output.dense)]
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.weight.copy_(theirs.weight)
            mine.bias.copy_(theirs.bias)
'''
PAIRS = "[(layer.w_q, own.query), (layer.w_k, own.key), (layer.w_v, own.value), (layer.w_o, bert_attention.output.dense)]"
WEIGHT, BIAS = "mine.weight.copy_(theirs.weight)", "mine.bias.copy_(theirs.bias)"

INSIDE = '''
from mha_lib import attention
def my_attention(module, query, key, value, attention_mask, **kwargs):
    groups = query.size(1) // key.size(1)
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    if attention_mask is None and module.is_causal and query.size(2) > 1:
        attention_mask = torch.ones(query.size(2), key.size(2), dtype=torch.bool).tril()
    output, weights = attention(query, key, value, attention_mask)
    return output.transpose(1, 2), weights
'''
BY_HAND = '''
def my_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask.logical_not(), float("-inf"))
    elif module.is_causal and query.shape[2] > 1:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    weights = torch.softmax(scores, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights
'''
CAUSAL = "attention_mask is None and module.is_causal and query.size(2) > 1"
KEYS, VALUES = "key = key.repeat_interleave(groups, dim=1)", "value = value.repeat_interleave(groups, dim=1)"
CALL = "output, weights = attention(query, key, value, attention_mask)"
RETURN = "return output.transpose(1, 2), weights"
HIDE = 'scores = scores.masked_fill(attention_mask.logical_not(), float("-inf"))'

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

SIMILAR = '''
from mha_lib import real_model
def masked_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights @ value, weights

def most_similar(model, tokenizer, sentence, others):
    real_model.use_attention(model, masked_attention)
    batch = tokenizer([sentence, *others], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    real = batch["attention_mask"].unsqueeze(-1)
    vectors = (states * real).sum(1) / real.sum(1)
    cosines = torch.cosine_similarity(vectors[:1], vectors[1:])
    return int(cosines.argmax()), cosines
'''
USE = "real_model.use_attention(model, masked_attention)"
REAL, VECTORS = 'real = batch["attention_mask"].unsqueeze(-1)', "vectors = (states * real).sum(1) / real.sum(1)"
COSINES, FOUND = "cosines = torch.cosine_similarity(vectors[:1], vectors[1:])", "return int(cosines.argmax()), cosines"


def answers(check, base, cases):
    return [Answer(check, check, edit(base, *changes), id) for id, changes in cases]


WRONG = [
    *answers("load_real_weights", LOAD, [
        ("copy_transposed", [f"{WEIGHT} -> mine.weight.copy_(theirs.weight.T)"]),
        ("real_wrong_order", [f"{PAIRS} -> [(layer.w_k, own.query), (layer.w_q, own.key), (layer.w_v, own.value), (layer.w_o, bert_attention.output.dense)]"]),
        ("real_wrong_order", [f"{PAIRS} -> [(layer.w_q, own.query), (layer.w_v, own.key), (layer.w_k, own.value), (layer.w_o, bert_attention.output.dense)]"]),
        ("real_wrong_order", [f"{PAIRS} -> [(layer.w_o, own.query), (layer.w_q, own.key), (layer.w_k, own.value), (layer.w_v, bert_attention.output.dense)]"]),
        ("real_bias_forgotten", [f"{BIAS} -> pass"]),
        ("real_bias_forgotten", [f"{BIAS} -> mine.bias.zero_()"]),
        ("real_bias_forgotten", [f"{BIAS} -> mine.bias.copy_(theirs.bias) if mine is not layer.w_o else None"]),
        ("real_output_forgotten", [f"{PAIRS} -> [(layer.w_q, own.query), (layer.w_k, own.key), (layer.w_v, own.value)]"]),
        ("copy_one_for_all", [f"{PAIRS} -> [(layer.w_q, own.query), (layer.w_k, own.query), (layer.w_v, own.query), (layer.w_o, bert_attention.output.dense)]"]),
        ("copy_half", [f"{PAIRS} -> [(layer.w_q, own.query), (layer.w_k, own.key), (layer.w_o, bert_attention.output.dense)]"]),
        ("copy_nothing", [f"{WEIGHT} -> mine.weight.clone().copy_(theirs.weight)", f"{BIAS} -> pass"]),
        ("source_changed", [f"{WEIGHT} -> theirs.weight.copy_(mine.weight)"]),
        ("copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
        ("no_such_attribute", ["own = bert_attention.self -> own = bert_attention"]),
    ]),
    *answers("my_attention", INSIDE, [
        ("real_not_causal", [f"{CAUSAL} -> False"]),
        ("real_always_causal", [f"{CAUSAL} -> attention_mask is None and query.size(2) > 1"]),
        ("real_one_query_sees_one_key", [f"{CAUSAL} -> attention_mask is None and module.is_causal"]),
        ("real_heads_in_front", [f"{RETURN} -> return output, weights"]),
        ("real_heads_in_front", [f"{RETURN} -> return output.reshape(output.size(0), output.size(2), -1), weights"]),
        ("real_repeat_order", [f"{KEYS} -> key = key.repeat(1, groups, 1, 1)", f"{VALUES} -> value = value.repeat(1, groups, 1, 1)"]),
        ("real_groups_forgotten", [f"{KEYS} -> pass", f"{VALUES} -> pass"]),
        ("real_scaled_twice", [f"{CALL} -> output, weights = attention(query * kwargs['scaling'], key, value, attention_mask)"]),
        ("real_weights_averaged", [f"{RETURN} -> return output.transpose(1, 2), weights.mean(dim=1)"]),
        ("not_a_pair", [f"{RETURN} -> return output.transpose(1, 2)"]),
    ]),
    *answers("my_attention", BY_HAND, [
        ("real_mask_added", [f"{HIDE} -> scores = scores + attention_mask"]),
        ("real_mask_added", [f"{HIDE} -> scores = scores + (1 - attention_mask.float())"]),
        ("real_mask_inverted", [f'{HIDE} -> scores = scores.masked_fill(attention_mask, float("-inf"))']),
        ("real_mask_ignored", [f"{HIDE} -> pass"]),
        ("real_not_scaled", [" * scaling -> "]),
    ]),
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
        ("prune_nothing", [f"{WIDTH} -> model = copy.deepcopy(model); width = model.config.hidden_size // model.config.num_attention_heads"]),
        ("prune_nothing", [f"{ZERO} -> dense.weight[:, head * width : (head + 1) * width].clone().zero_()"]),
        ("prune_grad_mode", ["with torch.no_grad(): -> if True:"]),
    ]),
    *answers("most_similar", SIMILAR, [
        ("similar_cls", [f"{VECTORS} -> vectors = states[:, 0]"]),
        ("similar_padding_counted", [f"{VECTORS} -> vectors = states.mean(1)"]),
        ("similar_special_tokens_left_out", [f"{REAL} -> ids = batch['input_ids']; real = ((ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id) & (ids != tokenizer.pad_token_id)).unsqueeze(-1)"]),
        ("similar_dot_products", [f"{COSINES} -> cosines = vectors[1:] @ vectors[0]"]),
        ("similar_distance", [f"{COSINES} -> cosines = (vectors[1:] - vectors[0]).norm(dim=-1)"]),
        ("similar_itself", [f"{COSINES} -> cosines = torch.cosine_similarity(vectors[:1], vectors)"]),
        ("similar_itself", [f"{FOUND} -> return int(cosines.argmax()) + 1, cosines"]),
        ("similar_least", [f"{FOUND} -> return int(cosines.argmin()), cosines"]),
        ("similar_mask_ignored", ["if mask is not None: -> if False:"]),
        ("similar_own_unused", [f"{USE} -> pass"]),
        ("not_a_pair", [f"{FOUND} -> return int(cosines.argmax())"]),
    ]),
]

RIGHT = [
    *answers("load_real_weights", LOAD, [
        (None, []),
        (None, [f"{WEIGHT} -> mine.load_state_dict(theirs.state_dict())", f"{BIAS} -> pass"]),
        (None, [f"{WEIGHT} -> mine.weight.data = theirs.weight.data.clone()", f"{BIAS} -> mine.bias.data = theirs.bias.data.clone()"]),
        (None, [f"{WEIGHT} -> mine.weight = nn.Parameter(theirs.weight.clone())", f"{BIAS} -> mine.bias = nn.Parameter(theirs.bias.clone())"]),
        (None, [f"{BIAS} -> mine.bias.copy_(theirs.bias) if mine is not layer.w_k else None"]),
        (None, [f"{PAIRS} -> zip((layer.w_q, layer.w_k, layer.w_v, layer.w_o), (own.query, own.key, own.value, bert_attention.output.dense))"]),
    ]),
    Answer("load_real_weights", "load_real_weights", "from mha_lib.spellings import transfer\ndef load_real_weights(layer, bert_attention):\n    return transfer(bert_attention, layer)\n"),
    *answers("my_attention", INSIDE, [
        (None, []),
        (None, [f"{RETURN} -> return output.transpose(1, 2).contiguous(), weights"]),
        (None, [f"{RETURN} -> return output.transpose(1, 2).flatten(2), weights"]),
        (None, [f"{RETURN} -> return [output.permute(0, 2, 1, 3), weights]"]),
        (None, [f"{KEYS} -> key = torch.stack([key] * groups, dim=2).flatten(1, 2)"]),
        (None, [f"{CAUSAL} -> attention_mask is None and module.is_causal and query.size(2) != 1"]),
        (None, ["torch.ones(query.size(2), key.size(2), dtype=torch.bool).tril() -> torch.tril(torch.ones(query.size(2), key.size(2))) == 1"]),
    ]),
    *answers("my_attention", BY_HAND, [
        (None, []),
        (None, [f"{HIDE} -> scores = scores + torch.zeros_like(attention_mask, dtype=scores.dtype).masked_fill(~attention_mask, -1e9)"]),
        (None, [f"{HIDE} -> scores = torch.where(attention_mask, scores, torch.finfo(scores.dtype).min)"]),
    ]),
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
    *answers("most_similar", SIMILAR, [
        (None, []),
        (None, [f"{COSINES} -> cosines = F.normalize(vectors[1:], dim=-1) @ F.normalize(vectors[0], dim=-1)"]),
        (None, [f"{VECTORS} -> vectors = torch.stack([s[m.bool()].mean(0) for s, m in zip(states, batch['attention_mask'])])"]),
        (None, [f"{FOUND} -> return cosines.argmax(), cosines.tolist()"]),
        (None, [f"{VECTORS} -> vectors = (states * real).sum(1)"]),
        (None, ["with torch.no_grad(): -> if True:"]),
    ]),
    Answer("most_similar", "most_similar", '''
from mha_lib import attention, real_model
def most_similar(model, tokenizer, sentence, others):
    real_model.use_attention(model, attention)
    def vector(text):
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    mine = vector(sentence)
    cosines = torch.stack([F.cosine_similarity(mine, vector(other), dim=0) for other in others])
    return int(cosines.argmax()), cosines
'''),
]
