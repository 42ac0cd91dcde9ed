"""Answers to the exercises about PyTorch's own layer: calling it, and taking its weights over."""

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

LOAD = '''
def load_torch_weights(mine, torch_mha):
    weights, biases = torch_mha.in_proj_weight.chunk(3), torch_mha.in_proj_bias.chunk(3)
    with torch.no_grad():
        for linear, weight, bias in zip((mine.w_q, mine.w_k, mine.w_v), weights, biases):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        mine.w_o.weight.copy_(torch_mha.out_proj.weight)
        mine.w_o.bias.copy_(torch_mha.out_proj.bias)
'''
CHUNKS = "weights, biases = torch_mha.in_proj_weight.chunk(3), torch_mha.in_proj_bias.chunk(3)"
ORDER = "zip((mine.w_q, mine.w_k, mine.w_v), weights, biases)"
OUT_WEIGHT = "mine.w_o.weight.copy_(torch_mha.out_proj.weight)"
OUT_BIAS = "mine.w_o.bias.copy_(torch_mha.out_proj.bias)"

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
        ("par_no_weights", [f"{RETURN} -> return torch_mha(query, key, value, attn_mask=blocked, need_weights=False)"]),
        ("par_mask_ignored", [f"{BLOCKED} -> pass"]),
        ("par_inputs_mixed_up", [f"{RETURN} -> return torch_mha(query, value, key, attn_mask=blocked, average_attn_weights=False)"]),
        ("not_a_pair", [f"{RETURN} -> return torch_mha(query, key, value, attn_mask=blocked)[0]"]),
    ]
] + [
    Answer("load_torch_weights", "load_torch_weights", edit(LOAD, *changes), id)
    for id, changes in [
        ("par_per_head_qkv_layout", [f"{CHUNKS} -> h = torch_mha.num_heads; weights = [w.reshape(12, 12) for w in torch_mha.in_proj_weight.view(h, 3, 12 // h, 12).unbind(1)]; biases = [b.reshape(12) for b in torch_mha.in_proj_bias.view(h, 3, 12 // h).unbind(1)]"]),
        ("par_order_kqv", [f"{ORDER} -> zip((mine.w_k, mine.w_q, mine.w_v), weights, biases)"]),
        ("par_order_kqv", [f"{ORDER} -> zip((mine.w_v, mine.w_k, mine.w_q), weights, biases)"]),
        ("par_out_proj_forgotten", [f"{OUT_WEIGHT} -> pass", f"{OUT_BIAS} -> pass"]),
        ("par_out_proj_forgotten", [f"{OUT_WEIGHT} -> pass"]),
        ("par_bias_forgotten", ["linear.bias.copy_(bias) -> pass", f"{OUT_BIAS} -> pass"]),
        ("par_bias_forgotten", ["linear.bias.copy_(bias) -> pass"]),
        ("copy_transposed", ["linear.weight.copy_(weight) -> linear.weight.copy_(weight.T)", f"{OUT_WEIGHT} -> mine.w_o.weight.copy_(torch_mha.out_proj.weight.T)"]),
        ("copy_nothing", [f"{OUT_WEIGHT} -> pass", f"{OUT_BIAS} -> pass", "linear.weight.copy_(weight) -> pass", "linear.bias.copy_(bias) -> pass"]),
        ("copy_one_for_all", [f"{CHUNKS} -> weights, biases = [torch_mha.in_proj_weight[:12]] * 3, [torch_mha.in_proj_bias[:12]] * 3"]),
        ("copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
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
    Answer("load_torch_weights", "load_torch_weights", edit(LOAD, *changes))
    for changes in (
        [],
        ["linear.weight.copy_(weight) -> linear.weight.data = weight.clone()"],
        ["linear.weight.copy_(weight) -> linear.weight = nn.Parameter(weight.clone())"],
        [f"{OUT_WEIGHT} -> mine.w_o = copy.deepcopy(torch_mha.out_proj)", f"{OUT_BIAS} -> pass"],
        [f"{CHUNKS} -> d = torch_mha.embed_dim; weights, biases = torch_mha.in_proj_weight.split(d), torch_mha.in_proj_bias.split(d)"],
    )
]
