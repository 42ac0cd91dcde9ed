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
        ("real_other_parameters", [f"{PAIRS} -> [(layer.w_q, own.query), (layer.w_k, own.key), (layer.w_v, own.value), (layer.w_o, bert_attention.output.LayerNorm)]"]),
        ("real_other_parameters", [f"{BIAS} -> mine.bias.copy_(theirs.bias.flip(0))"]),
        ("real_shared", [f"{WEIGHT} -> mine.weight = theirs.weight", f"{BIAS} -> mine.bias = theirs.bias"]),
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
        ("real_other_triangle", ["dtype=torch.bool).tril() -> dtype=torch.bool).triu()"]),
        ("real_mask_replaced", [f"{CAUSAL} -> module.is_causal and query.size(2) > 1"]),
        ("real_heads_last", [f"{RETURN} -> return output.permute(0, 2, 3, 1), weights"]),
        ("real_heads_last", [f"{RETURN} -> return output.transpose(1, 2).reshape(output.size(0), output.size(2), -1, output.size(1)), weights"]),
        ("real_pair_exchanged", [f"{RETURN} -> return weights, output.transpose(1, 2)"]),
        ("real_other_axes", [f"{RETURN} -> return output.permute(1, 0, 2, 3), weights"]),
        ("real_repeat_orders_differ", [f"{VALUES} -> value = value.repeat(1, groups, 1, 1)"]),
        ("real_mask_inverted", [f"{CALL} -> output, weights = attention(query, key, value, None if attention_mask is None else ~attention_mask)"]),
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
        ("real_divided_by_scaling", [" * scaling -> / scaling"]),
        ("real_softmax_over_others", ["torch.softmax(scores, -1) -> torch.softmax(scores, -2)"]),
        ("real_not_scaled", [" * scaling -> "]),
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
]
