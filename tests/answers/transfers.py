"""Answers to the exercises of checks/exercises/transfers.py."""

from tests.answers import Answer, edit

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

WRONG = [
    Answer("load_torch_weights", "load_torch_weights", edit(LOAD, *changes), id)
    for id, changes in [
        ("par_per_head_qkv_layout", [f"{CHUNKS} -> h = torch_mha.num_heads; weights = [w.reshape(12, 12) for w in torch_mha.in_proj_weight.view(h, 3, 12 // h, 12).unbind(1)]; biases = [b.reshape(12) for b in torch_mha.in_proj_bias.view(h, 3, 12 // h).unbind(1)]"]),
        ("par_order_kqv", [f"{ORDER} -> zip((mine.w_k, mine.w_q, mine.w_v), weights, biases)"]),
        ("par_order_kqv", [f"{ORDER} -> zip((mine.w_v, mine.w_k, mine.w_q), weights, biases)"]),
        ("par_out_proj_forgotten", [f"{OUT_WEIGHT} -> pass", f"{OUT_BIAS} -> pass"]),
        ("par_out_proj_forgotten", [f"{OUT_WEIGHT} -> pass"]),
        ("par_out_bias_forgotten", [f"{OUT_BIAS} -> pass"]),
        ("par_split_by_count", [f"{CHUNKS} -> weights, biases = torch_mha.in_proj_weight.split(3), torch_mha.in_proj_bias.split(3)"]),
        ("par_cut_along_inputs", [f"{CHUNKS} -> weights, biases = torch_mha.in_proj_weight.chunk(3, dim=1), torch_mha.in_proj_bias.chunk(3)"]),
        ("par_slices_overlap", [f"{CHUNKS} -> weights, biases = ([x[i : i + 12] for i in range(3)] for x in (torch_mha.in_proj_weight, torch_mha.in_proj_bias))"]),
        ("copy_added", ["linear.weight.copy_(weight) -> linear.weight.add_(weight)", "linear.bias.copy_(bias) -> linear.bias.add_(bias)"]),
        ("not_a_tensor_here", [f"{OUT_WEIGHT} -> mine.w_o.weight.copy_(torch_mha.q_proj_weight)"]),
        ("par_bias_forgotten", ["linear.bias.copy_(bias) -> pass", f"{OUT_BIAS} -> pass"]),
        ("par_bias_forgotten", ["linear.bias.copy_(bias) -> pass"]),
        ("copy_transposed", ["linear.weight.copy_(weight) -> linear.weight.copy_(weight.T)", f"{OUT_WEIGHT} -> mine.w_o.weight.copy_(torch_mha.out_proj.weight.T)"]),
        ("copy_transposed", [f"{OUT_WEIGHT} -> mine.w_o.weight.copy_(torch_mha.out_proj.weight.T)"]),
        ("copy_biases_elsewhere", ["linear.bias.copy_(bias) -> linear.bias.copy_(biases[0])"]),
        ("copy_nothing", [f"{OUT_WEIGHT} -> pass", f"{OUT_BIAS} -> pass", "linear.weight.copy_(weight) -> pass", "linear.bias.copy_(bias) -> pass"]),
        ("copy_one_for_all", [f"{CHUNKS} -> weights, biases = [torch_mha.in_proj_weight[:12]] * 3, [torch_mha.in_proj_bias[:12]] * 3"]),
        ("copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
    ]
] + [
    Answer(check, check, edit(base, *changes), id)
    for check, base, id, changes in [
        ("load_cloned", CLONED, "cloned_last_forgotten", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_q, layer.w_k, layer.w_v))"]),
        ("load_cloned", CLONED, "cloned_wrong_order", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_k, layer.w_q, layer.w_v, layer.w_o))"]),
        ("load_cloned", CLONED, "cloned_wrong_order", [f"{PAIRS} -> pairs = zip(cloned.linears, (layer.w_o, layer.w_q, layer.w_k, layer.w_v))"]),
        ("load_cloned", CLONED, "cloned_biases_forgotten", [f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, "copy_transposed", [f"{WEIGHT} -> target.weight.copy_(source.weight.T)"]),
        ("load_cloned", CLONED, "source_changed", [f"{WEIGHT} -> source.weight.copy_(target.weight)", f"{BIAS} -> source.bias.copy_(target.bias)"]),
        ("load_cloned", CLONED, "copy_nothing", [f"{WEIGHT} -> target.weight.clone().copy_(source.weight)", f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, "copy_added", [f"{WEIGHT} -> target.weight.copy_((target.weight + source.weight) / 2)", f"{BIAS} -> target.bias.copy_((target.bias + source.bias) / 2)"]),
        ("load_cloned", CLONED, "modules_shared", ["        for target, source in pairs:\n            target.weight.copy_(source.weight)\n            target.bias.copy_(source.bias) ->         cloned.linears = nn.ModuleList([layer.w_q, layer.w_k, layer.w_v, layer.w_o])"]),
        ("load_cloned", CLONED, "copy_one_for_all", [f"{PAIRS} -> pairs = zip(cloned.linears, [layer.w_q] * 4)"]),
        ("load_cloned", CLONED, "copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
        ("load_without_bias", FREE, "bias_has_no_place", ["target.W_k.weight.copy_(layer.w_k.weight) -> target.W_k.weight.copy_(layer.w_k.weight); target.W_k.bias.copy_(layer.w_k.bias)"]),
        ("load_without_bias", FREE, "output_bias_forgotten", ["target.W_o.bias.copy_(layer.w_o.bias) -> pass"]),
        ("load_without_bias", FREE, "bias_folded_elsewhere", ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o.bias.copy_(layer.w_o.bias + layer.w_k.bias)"]),
        ("load_without_bias", FREE, "bias_folded_elsewhere", ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o.bias.copy_(layer.w_o.bias + layer.w_o.weight @ layer.w_k.bias)"]),
        ("load_without_bias", FREE, "bias_folded_elsewhere", ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o.bias.copy_(layer.w_o.bias); target.W_q.weight.add_(layer.w_k.bias)"]),
        ("load_without_bias", FREE, "output_forgotten", ["target.W_o.weight.copy_(layer.w_o.weight) -> pass"]),
        ("load_without_bias", FREE, "weights_in_wrong_places", ["target.W_q.weight.copy_(layer.w_q.weight) -> target.W_q.weight.copy_(layer.w_k.weight)", "target.W_k.weight.copy_(layer.w_k.weight) -> target.W_k.weight.copy_(layer.w_q.weight)"]),
        ("load_without_bias", "def load_without_bias(target, layer):\n    pass\n", "copy_nothing", []),
        ("load_without_bias", FREE, "copy_grad_mode", ["with torch.no_grad(): -> if True:"]),
    ]
]

RIGHT = [
    Answer("load_torch_weights", "load_torch_weights", edit(LOAD, *changes))
    for changes in (
        [],
        ["linear.weight.copy_(weight) -> linear.weight.data = weight.clone()"],
        ["linear.weight.copy_(weight) -> linear.weight = nn.Parameter(weight.clone())"],
        [f"{OUT_WEIGHT} -> mine.w_o = copy.deepcopy(torch_mha.out_proj)", f"{OUT_BIAS} -> pass"],
        [f"{OUT_WEIGHT} -> mine.w_o = torch_mha.out_proj", f"{OUT_BIAS} -> pass"],
        [f"{CHUNKS} -> d = torch_mha.embed_dim; weights, biases = torch_mha.in_proj_weight.split(d), torch_mha.in_proj_bias.split(d)"],
    )
] + [
    Answer(check, check, edit(base, *changes))
    for check, base, changes in [
        ("load_cloned", CLONED, []),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.load_state_dict(source.state_dict())", f"{BIAS} -> pass"]),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.weight = source.weight", f"{BIAS} -> target.bias = source.bias"]),
        ("load_cloned", CLONED, [f"{WEIGHT} -> target.weight.data = source.weight.data.clone()", f"{BIAS} -> target.bias.data = source.bias.data.clone()"]),
        ("load_without_bias", FREE, []),
        ("load_without_bias", FREE, ["target.W_o.bias.copy_(layer.w_o.bias) -> target.W_o = layer.w_o"]),
    ]
]
