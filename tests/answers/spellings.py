"""Answers to the exercises about spellings (chapter 6)."""

from tests.answers import Answer, edit

CLONED = '''
def load_cloned(cloned, layer):
    pairs = zip(cloned.linears, (layer.w_q, layer.w_k, layer.w_v, layer.w_o))
    with torch.no_grad():
        for target, source in pairs:
            target.weight.copy_(source.weight)
            target.bias.copy_(source.bias)
'''
PAIRS = "pairs = zip(cloned.linears, (layer.w_q, layer.w_k, layer.w_v, layer.w_o))"
WEIGHT = "target.weight.copy_(source.weight)"
BIAS = "target.bias.copy_(source.bias)"

FREE = '''
def load_without_bias(target, layer):
    with torch.no_grad():
        target.W_q.weight.copy_(layer.w_q.weight)
        target.W_k.weight.copy_(layer.w_k.weight)
        target.W_v.weight.copy_(layer.w_v.weight)
        target.W_o.weight.copy_(layer.w_o.weight)
        target.W_o.bias.copy_(layer.w_o.bias)
'''

WHICH = '''
def which_spelling(layer):
    names = dict(layer.named_modules())
    if "linears" in names:
        return "cloned"
    if "dense" in names:
        return "bert"
    if "out_proj" in names:
        return "torch"
    return "split_combine"
'''

MASK = '''
def mask_for(spelling, mask, num_heads):
    if spelling == "cloned":
        return mask
    if spelling == "split_combine":
        return mask.unsqueeze(1)
    return (~mask).repeat_interleave(num_heads, dim=0)
'''
TORCH = "return (~mask).repeat_interleave(num_heads, dim=0)"

WRONG = [
    Answer(check, check, edit(base, *changes), id)
    for check, base, id, changes in [
        ("load_cloned", CLONED, "cloned_last_forgotten", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_q, layer.w_k, layer.w_v))"]),
        ("load_cloned", CLONED, "cloned_wrong_order", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_k, layer.w_q, layer.w_v, layer.w_o))"]),
        ("load_cloned", CLONED, "cloned_wrong_order", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_o, layer.w_q, layer.w_k, layer.w_v))"]),
        ("load_cloned", CLONED, "cloned_biases_forgotten", [f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, "copy_transposed", [f"{WEIGHT} -> target.weight.copy_(source.weight.T)"]),
        ("load_cloned", CLONED, "source_changed", [f"{WEIGHT} -> source.weight.copy_(target.weight)", f"{BIAS} -> source.bias.copy_(target.bias)"]),
        ("load_cloned", CLONED, "copy_nothing", [f"{WEIGHT} -> target.weight.clone().copy_(source.weight)", f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, "copy_one_for_all", [f"{PAIRS} -> pairs = zip(cloned.linears, [layer.w_q] * 4)"]),
        ("load_cloned", CLONED, "copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
        ("load_without_bias", FREE, "bias_has_no_place", ["target.W_k.weight.copy_(layer.w_k.weight) -> target.W_k.weight.copy_(layer.w_k.weight); target.W_k.bias.copy_(layer.w_k.bias)"]),
        ("load_without_bias", FREE, "output_bias_forgotten", ["target.W_o.bias.copy_(layer.w_o.bias) -> pass"]),
        ("load_without_bias", FREE, "bias_folded_elsewhere", ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o.bias.copy_(layer.w_o.bias + layer.w_k.bias)"]),
        ("load_without_bias", FREE, "output_forgotten", ["target.W_o.weight.copy_(layer.w_o.weight) -> pass"]),
        ("load_without_bias", FREE, "weights_in_wrong_places", ["target.W_q.weight.copy_(layer.w_q.weight) -> target.W_q.weight.copy_(layer.w_k.weight)", "target.W_k.weight.copy_(layer.w_k.weight) -> target.W_k.weight.copy_(layer.w_q.weight)"]),
        ("load_without_bias", "def load_without_bias(target, layer):\n    pass\n", "copy_nothing", []),
        ("load_without_bias", FREE, "copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
        ("which_spelling", WHICH, "always_the_same", ['return "bert" -> return "cloned"', 'return "torch" -> return "cloned"', 'return "split_combine" -> return "cloned"']),
        ("which_spelling", "def which_spelling(layer):\n    return {'ClonedLinears': 'cloned', 'SplitCombine': 'split_combine', 'BertStyle': 'bert', 'MultiheadAttention': 'torch'}.get(type(layer).__name__, 'none')\n", "by_class_name", []),
        ("which_spelling", WHICH, "two_mixed_up", ['if "dense" in names: -> if "out_proj" in names:', '    if "out_proj" in names:\n        return "torch" ->     if "dense" in names:\n        return "torch"']),
        ("which_spelling", "def which_spelling(layer):\n    return type(layer).__name__\n", "not_a_spelling", []),
        ("mask_for", MASK, "torch_not_inverted", [f"{TORCH} -> return mask.repeat_interleave(num_heads, 0)"]),
        ("mask_for", MASK, "torch_repeat_order", [f"{TORCH} -> return (~mask).repeat(num_heads, 1, 1)"]),
        ("mask_for", MASK, "torch_without_heads", [f"{TORCH} -> return ~mask"]),
        ("mask_for", MASK, "cloned_head_axis_twice", ['if spelling == "cloned":\n        return mask -> if spelling == "cloned":\n        return mask[:, None]']),
        ("mask_for", MASK, "split_combine_without_head_axis", ["return mask.unsqueeze(1) -> return mask"]),
        ("mask_for", MASK, "others_inverted", ["return mask.unsqueeze(1) -> return ~mask.unsqueeze(1)"]),
        ("mask_for", "def mask_for(spelling, mask, num_heads):\n    return mask\n", "mask_untouched", []),
    ]
]

RIGHT = [
    Answer(check, check, edit(base, *changes))
    for check, base, changes in [
        ("load_cloned", CLONED, []),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.load_state_dict(source.state_dict())", f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.weight = source.weight", f"{BIAS} -> target.bias = source.bias"]),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.weight.data = source.weight.data.clone()", f"{BIAS} -> target.bias.data = source.bias.data.clone()"]),
        ("load_without_bias", FREE, []),
        ("load_without_bias", FREE, ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o = layer.w_o"]),
        ("which_spelling", WHICH, []),
        ("which_spelling", "def which_spelling(layer):\n    tests = {'cloned': 'linears', 'bert': 'dense', 'torch': 'in_proj_weight', 'split_combine': 'W_q'}\n    return next(n for n, a in tests.items() if hasattr(layer, a))\n", []),
        ("mask_for", MASK, []),
        ("mask_for", MASK, [f"{TORCH} -> return torch.stack([~mask] * num_heads, 1).flatten(0, 1)"]),
        ("mask_for", MASK, ["return mask.unsqueeze(1) -> return mask[:, None]"]),
    ]
]
