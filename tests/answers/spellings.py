"""Answers to the exercises of checks/exercises/spellings.py."""

from tests.answers import Answer, edit

CALL = '''
def call_torch(torch_mha, query, key, value, mask=None):
    torch_mha.eval()
    blocked = None
    if mask is not None:
        allowed = mask.expand(query.size(0), query.size(1), key.size(1))
        blocked = (~allowed).repeat_interleave(torch_mha.num_heads, dim=0)
    return torch_mha(query, key, value, attn_mask=blocked, average_attn_weights=False)
'''
BLOCKED = "blocked = (~allowed).repeat_interleave(torch_mha.num_heads, dim=0)"
RETURN = "return torch_mha(query, key, value, attn_mask=blocked, average_attn_weights=False)"

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
    Answer("call_torch", "call_torch", edit(CALL, *changes), id)
    for id, changes in [
        ("par_mask_not_inverted", [f"{BLOCKED} -> blocked = allowed.repeat_interleave(torch_mha.num_heads, 0)"]),
        ("par_float_mask_added", [f"{BLOCKED} -> blocked = (~allowed).float().repeat_interleave(torch_mha.num_heads, 0)"]),
        ("par_mask_batch_only", [f"{BLOCKED} -> blocked = ~allowed"]),
        ("par_mask_repeat_order", [f"{BLOCKED} -> blocked = (~allowed).repeat(torch_mha.num_heads, 1, 1)"]),
        ("par_mask_repeat_order", [f"{BLOCKED} -> blocked = torch.cat([~allowed] * torch_mha.num_heads)"]),
        ("par_train_mode", ["torch_mha.eval() -> torch_mha.train()"]),
        ("par_train_mode", ["torch_mha.eval() -> pass"]),
        ("par_weights_averaged", [f"{RETURN} -> return torch_mha(query, key, value, attn_mask=blocked)"]),
        ("par_weights_averaged", [f"{RETURN} -> out, w = torch_mha(query, key, value, attn_mask=blocked, average_attn_weights=False); return out, w.sum(1)"]),
        ("par_no_weights", [f"{RETURN} -> return torch_mha(query, key, value, attn_mask=blocked, need_weights=False)"]),
        ("par_mask_ignored", [f"{BLOCKED} -> pass"]),
        ("par_inputs_mixed_up", [f"{RETURN} -> return torch_mha(query, value, key, attn_mask=blocked, average_attn_weights=False)"]),
        ("not_a_pair", [f"{RETURN} -> return torch_mha(query, key, value, attn_mask=blocked)[0]"]),
        ("par_mask_not_inverted", [f"{BLOCKED} -> blocked = allowed.float().repeat_interleave(torch_mha.num_heads, 0) * -1e9"]),
        ("par_first_query_only", [f"{RETURN} -> return torch_mha(query, key, value, key_padding_mask=None if mask is None else ~mask[:, 0], average_attn_weights=False)"]),
        ("par_mask_as_padding", [f"{RETURN} -> return torch_mha(query, key, value, blocked, average_attn_weights=False)"]),
        ("par_mask_repeated_along_queries", [f"{BLOCKED} -> blocked = (~allowed).repeat_interleave(torch_mha.num_heads, dim=1)"]),
        ("par_mask_copies_by_width", [f"{BLOCKED} -> blocked = (~allowed).repeat_interleave(torch_mha.head_dim, dim=0)"]),
        ("par_tokens_first", [f"{RETURN} -> out, w = torch_mha(*(x.transpose(0, 1) for x in (query, key, value)), attn_mask=blocked, average_attn_weights=False); return out.transpose(0, 1), w"]),
        ("attn_mask_shape", [f"{BLOCKED} -> blocked = (~mask).repeat_interleave(torch_mha.num_heads, 0)"]),
    ]
] + [
    Answer(check, check, edit(base, *changes), id)
    for check, base, id, changes in [
        ("which_spelling", WHICH, "always_the_same", ['return "bert" -> return "cloned"', 'return "torch" -> return "cloned"', 'return "split_combine" -> return "cloned"']),
        ("which_spelling", "def which_spelling(layer):\n    return {'ClonedLinears': 'cloned', 'SplitCombine': 'split_combine', 'BertStyle': 'bert', 'MultiheadAttention': 'torch'}.get(type(layer).__name__, 'none')\n", "by_class_name", []),
        ("which_spelling", WHICH, "two_mixed_up", ['if "dense" in names: -> if "out_proj" in names:', '    if "out_proj" in names:\n        return "torch" ->     if "dense" in names:\n        return "torch"']),
        ("which_spelling", "def which_spelling(layer):\n    return type(layer).__name__\n", "not_a_spelling", []),
        ("mask_for", MASK, "torch_not_inverted", [f"{TORCH} -> return mask.repeat_interleave(num_heads, 0)"]),
        ("mask_for", MASK, "torch_repeat_order", [f"{TORCH} -> return (~mask).repeat(num_heads, 1, 1)"]),
        ("mask_for", MASK, "torch_without_heads", [f"{TORCH} -> return ~mask"]),
        ("mask_for", MASK, "torch_for_all", ['    if spelling == "cloned":\n        return mask ->     pass']),
        ("mask_for", MASK, "cloned_repeated", ['if spelling == "cloned":\n        return mask -> if spelling == "cloned":\n        return mask.repeat_interleave(num_heads, 0)']),
        ("mask_for", MASK, "torch_flattened", [f"{TORCH} -> return (~mask).repeat_interleave(num_heads)"]),
        ("mask_for", MASK, "torch_copies_along_queries", [f"{TORCH} -> return (~mask).repeat_interleave(num_heads, dim=1)"]),
        ("mask_for", MASK, "torch_not_folded", [f"{TORCH} -> return (~mask).unsqueeze(1).expand(-1, num_heads, -1, -1)"]),
        ("mask_for", MASK, "split_combine_axis_elsewhere", ["return mask.unsqueeze(1) -> return mask.unsqueeze(2)"]),
        ("which_spelling", "def which_spelling(layer):\n    return 'cloned' if 'linears' in layer else 'torch'\n", "nothing_to_search", []),
        ("mask_for", MASK, "cloned_head_axis_twice", ['if spelling == "cloned":\n        return mask -> if spelling == "cloned":\n        return mask[:, None]']),
        ("mask_for", MASK, "split_combine_without_head_axis", ["return mask.unsqueeze(1) -> return mask"]),
        ("mask_for", MASK, "others_inverted", ["return mask.unsqueeze(1) -> return ~mask.unsqueeze(1)"]),
        ("mask_for", "def mask_for(spelling, mask, num_heads):\n    return mask\n", "mask_untouched", []),
    ]
]

RIGHT = [
    Answer("call_torch", "call_torch", edit(CALL, *changes))
    for changes in (
        [],
        [f"{RETURN} -> out, weights = torch_mha(query, key, value, attn_mask=blocked, need_weights=True, average_attn_weights=False); return [out, weights]"],
        [f"{BLOCKED} -> blocked = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf).repeat_interleave(torch_mha.num_heads, 0)"],
        [f"{BLOCKED} -> h = torch_mha.num_heads; blocked = (~allowed)[:, None].expand(-1, h, -1, -1).reshape(-1, *allowed.shape[1:])"],
    )
] + [
    Answer(check, check, edit(base, *changes))
    for check, base, changes in [
        ("which_spelling", WHICH, []),
        ("which_spelling", "def which_spelling(layer):\n    tests = {'cloned': 'linears', 'bert': 'dense', 'torch': 'in_proj_weight', 'split_combine': 'W_q'}\n    return next(n for n, a in tests.items() if hasattr(layer, a))\n", []),
        ("mask_for", MASK, []),
        ("mask_for", MASK, [f"{TORCH} -> return torch.stack([~mask] * num_heads, 1).flatten(0, 1)"]),
        ("mask_for", MASK, ["return mask.unsqueeze(1) -> return mask[:, None]"]),
    ]
]
