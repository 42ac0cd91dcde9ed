"""Answers to the exercises of chapter 7: counting, and attention in pieces."""

from tests.answers import Answer, edit

COUNT = '''
def multiplications(batch, length, d_model):
    linears = 4 * batch * length * d_model * d_model
    tables = 2 * batch * length * length * d_model
    return linears + tables
'''
LINEARS = "linears = 4 * batch * length * d_model * d_model"
TABLES = "tables = 2 * batch * length * length * d_model"
SUM = "return linears + tables"

LONGEST = '''
def longest_text(budget_bytes, num_heads):
    cells = budget_bytes // (4 * num_heads)
    return math.isqrt(cells)
'''
CELLS = "cells = budget_bytes // (4 * num_heads)"
ROOT = "return math.isqrt(cells)"

CHUNKS = '''
def attention_in_chunks(query, key, value, chunk):
    outputs = []
    for start in range(0, query.size(-2), chunk):
        rows = query[..., start : start + chunk, :]
        scores = rows @ key.transpose(-2, -1) / query.size(-1) ** 0.5
        weights = torch.softmax(scores, dim=-1)
        outputs.append(weights @ value)
    return torch.cat(outputs, dim=-2)
'''
LOOP = "for start in range(0, query.size(-2), chunk):"
ROWS = "rows = query[..., start : start + chunk, :]"
SCORES = "scores = rows @ key.transpose(-2, -1) / query.size(-1) ** 0.5"
WEIGHTS = "weights = torch.softmax(scores, dim=-1)"
APPEND = "outputs.append(weights @ value)"
CAT = "return torch.cat(outputs, dim=-2)"

WRONG = [
    Answer("multiplications", "multiplications", edit(COUNT, *changes), id)
    for id, changes in [
        ("count_additions_too", [f"{SUM} -> return 2 * (linears + tables)"]),
        ("count_tables_only", [f"{SUM} -> return tables"]),
        ("count_linears_only", [f"{SUM} -> return linears"]),
        ("count_linears_wrong", [f"{LINEARS} -> linears = 3 * batch * length * d_model * d_model"]),
        ("count_linears_wrong", [f"{LINEARS} -> linears = batch * length * d_model * d_model"]),
        ("count_one_table", [f"{TABLES} -> tables = batch * length * length * d_model"]),
        ("count_batch_forgotten", [f"{LINEARS} -> linears = 4 * length * d_model**2", f"{TABLES} -> tables = 2 * length**2 * d_model"]),
        ("count_batch_forgotten", [f"{TABLES} -> tables = 2 * length**2 * d_model"]),
        ("count_table_linear", [f"{TABLES} -> tables = 2 * batch * length * d_model"]),
        ("count_cells_only", [f"{TABLES} -> tables = 2 * batch * length**2"]),
        ("count_all_as_linears", [f"{TABLES} -> tables = 2 * batch * length * d_model**2"]),
        ("count_all_as_tables", [f"{LINEARS} -> linears = 4 * batch * length**2 * d_model"]),
        ("count_one_output", [f"{LINEARS} -> linears = 4 * batch * length * d_model"]),
        ("count_biases_too", [f"{LINEARS} -> linears = 4 * batch * length * (d_model * d_model + d_model)"]),
        ("count_across_sentences", [f"{TABLES} -> tables = 2 * (batch * length) ** 2 * d_model"]),
        ("count_linears_wrong", [f"{LINEARS} -> linears = 12 * batch * length * d_model**2"]),
        ("count_both_numbers", [f"{LINEARS} -> linears = 3 * batch * length * d_model**2", f"{TABLES} -> tables = batch * length**2 * d_model"]),
        ("count_biases_too", [f"{SUM} -> return linears + tables + 3 * batch * length**2"]),
        ("count_half_a_table", [f"{TABLES} -> tables = batch * length * (length + 1) * d_model"]),
        ("count_linears_once", [f"{LINEARS} -> linears = 4 * d_model**2"]),
        ("count_features_squared", [f"{TABLES} -> tables = 2 * batch * length**2 * d_model**2"]),
        ("count_doubled_for_squared", [f"{LINEARS} -> linears = 4 * batch * length * d_model * 2", f"{TABLES} -> tables = 2 * batch * length * 2 * d_model"]),
        ("count_multiplied", [f"{SUM} -> return linears * tables"]),
        ("wrong_factor", [f"{SUM} -> return (linears + tables) / length"]),
        ("count_fixed", [f"{SUM} -> return 1_310_720"]),
        ("not_added_up", [f"{SUM} -> return linears, tables"]),
        ("not_added_up", [f"{SUM} -> return {{'linears': linears, 'tables': tables}}"]),
        ("returned_none", [f"{SUM} -> print(linears + tables)"]),
    ]
] + [
    Answer("longest_text", "longest_text", edit(LONGEST, *changes), id)
    for id, changes in [
        ("text_two_tables", [f"{CELLS} -> cells = budget_bytes // (2 * 4 * num_heads)"]),
        ("text_heads_forgotten", [f"{CELLS} -> cells = budget_bytes // 4"]),
        ("text_bytes_forgotten", [f"{CELLS} -> cells = budget_bytes // num_heads"]),
        ("text_bits_for_bytes", [f"{CELLS} -> cells = budget_bytes // (32 * num_heads)"]),
        ("text_other_float", [f"{CELLS} -> cells = budget_bytes // (2 * num_heads)"]),
        ("text_root_forgotten", [f"{ROOT} -> return cells"]),
        ("text_half_for_root", [f"{ROOT} -> return cells // 2"]),
        ("text_rounded_up", [f"{ROOT} -> return math.ceil(math.sqrt(budget_bytes / (4 * num_heads)))"]),
        ("text_rounded_up", [f"{ROOT} -> return round(math.sqrt(budget_bytes / (4 * num_heads)))"]),
        ("text_not_whole", [f"{ROOT} -> return (budget_bytes / (4 * num_heads)) ** 0.5"]),
        ("text_one_too_short", [f"{ROOT} -> length = 0\n    while 4 * num_heads * (length + 1) ** 2 < budget_bytes:\n        length += 1\n    return length"]),
        ("text_one_off", [f"{ROOT} -> length = 0\n    while 4 * num_heads * length ** 2 <= budget_bytes:\n        length += 1\n    return length"]),
        ("text_heads_outside_root", [f"{CELLS} -> cells = budget_bytes // 4", f"{ROOT} -> return math.isqrt(cells) // num_heads"]),
        ("text_times_heads", [f"{CELLS} -> cells = budget_bytes // 4 * num_heads"]),
        ("text_two_roots", [f"{CELLS} -> cells = budget_bytes // 4", f"{ROOT} -> return math.isqrt(cells) // math.isqrt(num_heads)"]),
        ("text_other_unit", [f"{CELLS} -> cells = budget_bytes * 1024 // (4 * num_heads)"]),
        ("text_logarithm", [f"{ROOT} -> return int(math.log2(max(cells, 1)))"]),
        ("text_other_float", [f"{CELLS} -> cells = 2 * budget_bytes // (4 * num_heads)"]),
        ("text_fixed", [f"{ROOT} -> return 181"]),
        ("wrong_type", [f"{ROOT} -> return str(math.isqrt(cells))+' tokens'"]),
    ]
] + [
    Answer("attention_in_chunks", "attention_in_chunks", edit(CHUNKS, *changes), id)
    for id, changes in [
        ("chunks_last_missing", [f"{LOOP} -> for start in range(0, query.size(-2) - chunk + 1, chunk):"]),
        ("chunks_last_missing", [f"{LOOP} -> for start in (i * chunk for i in range(query.size(-2) // chunk)):"]),
        ("chunks_over_keys", [f"{LOOP} -> for start in range(0, key.size(-2), chunk):", f"{ROWS} -> rows = query", f"{SCORES} -> scores = rows @ key[..., start : start + chunk, :].transpose(-2, -1) / query.size(-1) ** 0.5", f"{APPEND} -> outputs.append(weights @ value[..., start : start + chunk, :])", f"{CAT} -> return sum(outputs)"]),
        ("chunks_over_keys", [f"{LOOP} -> for start in range(0, key.size(-2), chunk):", f"{ROWS} -> rows = query", f"{SCORES} -> scores = rows @ key[..., start : start + chunk, :].transpose(-2, -1) / query.size(-1) ** 0.5", f"{APPEND} -> outputs.append(weights @ value[..., start : start + chunk, :])", f"{CAT} -> return torch.stack(outputs).mean(0)"]),
        ("chunks_keys_cut_too", ["    outputs = [] ->     import mha_lib; outputs = []", f"{LOOP} -> for q, k, v in zip(query.split(chunk, -2), key.split(chunk, -2), value.split(chunk, -2)):", f"{ROWS} -> rows = q", f"{SCORES} -> scores = q @ k.transpose(-2, -1) / query.size(-1) ** 0.5", f"{APPEND} -> outputs.append(weights @ v)"]),
        ("chunks_scale_missing", [f"{SCORES} -> scores = rows @ key.transpose(-2, -1)"]),
        ("chunks_scale_of_chunk", [f"{SCORES} -> scores = rows @ key.transpose(-2, -1) / chunk**0.5"]),
        ("chunks_softmax_over_queries", [f"{WEIGHTS} -> weights = torch.softmax(scores, dim=-2)"]),
        ("chunks_softmax_missing", [f"{WEIGHTS} -> weights = scores"]),
        ("chunks_reversed", [f"{CAT} -> return torch.cat(outputs[::-1], dim=-2)"]),
        ("chunks_joined_on_another_axis", [f"{CAT} -> return torch.cat(outputs)"]),
        ("chunks_joined_on_another_axis", [f"{CAT} -> return torch.cat(outputs, dim=-1)"]),
        ("chunks_joined_on_another_axis", [f"{CAT} -> return torch.cat(outputs, dim=1)"]),
        ("chunks_of_sentences", [f"{LOOP} -> for rows in query.split(chunk):", f"{ROWS} -> pass", f"{CAT} -> return torch.cat(outputs)"]),
        ("chunks_of_sentences", ["    outputs = [] ->     import mha_lib; outputs = []", f"{ROWS} -> rows = query[start : start + chunk]", f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> outputs.append(mha_lib.attention(rows, key, value)[0])"]),
        ("chunks_of_features", ["    outputs = [] ->     import mha_lib; outputs = []", f"{LOOP} -> for rows in query.split(chunk, -1):", f"{ROWS} -> pass", f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> outputs.append(mha_lib.attention(rows, key, value)[0])"]),
        ("chunks_axis_from_front", ["    outputs = [] ->     import mha_lib; outputs = []", f"{LOOP} -> for rows in query.split(chunk, 1):", f"{ROWS} -> pass", f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> outputs.append(mha_lib.attention(rows, key, value)[0])", f"{CAT} -> return torch.cat(outputs, 1)"]),
        ("chunks_overlap", [f"{LOOP} -> for start in range(query.size(-2)):"]),
        ("chunks_overlap", [f"{ROWS} -> rows = query[..., start : start + chunk + 1, :]"]),
        ("chunks_values_cut", ["    outputs = [] ->     import mha_lib; outputs = []", f"{LOOP} -> for rows, part in zip(query.split(chunk, -2), value.split(chunk, -2)):", f"{ROWS} -> pass", f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> outputs.append(mha_lib.attention(rows, key, part)[0])"]),
        ("chunks_of_weights", [f"{APPEND} -> outputs.append(weights)"]),
        ("chunks_one_piece_only", [f"{CAT} -> return outputs[-1]"]),
        ("chunks_added", [f"{APPEND} -> outputs = [weights @ value if not outputs else outputs[0] + weights @ value]", f"{CAT} -> return outputs[0]"]),
        ("chunks_left_to_torch", [f"{LOOP} -> for start in (0,):", f"{ROWS} -> rows = query", f"{SCORES} -> scores = None", f"{WEIGHTS} -> weights = None", f"{APPEND} -> outputs.append(F.scaled_dot_product_attention(query, key, value))"]),
        ("chunks_number_of_pieces", [f"{LOOP} -> for rows in query.chunk(chunk, dim=-2):", f"{ROWS} -> pass"]),
        ("chunks_whole_table", [f"{LOOP} -> for start in (0,):", f"{ROWS} -> rows = query"]),
        ("chunks_whole_table", ["    outputs = [] ->     table = torch.softmax(query @ key.transpose(-2, -1) / query.size(-1) ** 0.5, dim=-1)\n    outputs = []", f"{SCORES} -> pass", f"{WEIGHTS} -> weights = table[..., start : start + chunk, :]"]),
        ("chunks_whole_table", ["    outputs = [] ->     tables, outputs = [], []", f"{APPEND} -> tables.append(weights)", f"{CAT} -> return torch.cat(tables, dim=-2) @ value"]),
        ("chunks_kept", ["    outputs = [] ->     tables, outputs = [], []", f"{APPEND} -> tables.append(weights)", f"{CAT} -> return torch.cat([t @ value for t in tables], dim=-2)"]),
    ]
]

RIGHT = [
    Answer("multiplications", "multiplications", edit(COUNT, *changes))
    for changes in (
        [],
        [f"{SUM} -> return 2 * batch * length * d_model * (2 * d_model + length)"],
        [f"{SUM} -> return float(linears + tables)"],
        [f"{SUM} -> return torch.tensor(linears + tables)"],
        [f"{SUM} -> from mha_lib import cost; return sum(cost.multiplications(batch, length, d_model).values())"],
        [f"{TABLES} -> tables = sum(batch * (length * d_model * length) for product in ('scores', 'mixture'))"],
        [f"{SUM} -> from torch.utils.flop_counter import FlopCounterMode; import mha_lib\n    layer, x = mha_lib.MultiHeadAttention(d_model, 1), torch.zeros(batch, length, d_model)\n    with FlopCounterMode(display=False) as counter:\n        layer(x, x, x)\n    return counter.get_total_flops() // 2"],
    )
] + [
    Answer("longest_text", "longest_text", edit(LONGEST, *changes))
    for changes in (
        [],
        [f"{ROOT} -> return int(cells**0.5)"],
        [f"{ROOT} -> return math.floor(math.sqrt(budget_bytes / 4 / num_heads))"],
        [f"{ROOT} -> length = 0\n    while 4 * num_heads * (length + 1) ** 2 <= budget_bytes:\n        length += 1\n    return length"],
        [f"{ROOT} -> return float(math.isqrt(cells))"],
        [f"{ROOT} -> return torch.tensor(cells, dtype=torch.float64).sqrt().floor().long()"],
        [f"{CELLS} -> import mha_lib.cost as cost; cells = budget_bytes // cost.table_bytes(1, num_heads, 1)"],
    )
] + [
    Answer("attention_in_chunks", "attention_in_chunks", edit(CHUNKS, *changes))
    for changes in (
        [],
        [f"{LOOP} -> for rows in query.split(chunk, dim=-2):", f"{ROWS} -> pass"],
        [f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> import mha_lib; outputs.append(mha_lib.attention(rows, key, value)[0])"],
        [f"{SCORES} -> pass", f"{WEIGHTS} -> pass", f"{APPEND} -> outputs.append(F.scaled_dot_product_attention(rows, key, value))"],
        ["    outputs = [] ->     output = query.new_empty(*query.shape[:-1], value.size(-1))", f"{APPEND} -> output[..., start : start + chunk, :] = weights @ value", f"{CAT} -> return output"],
        [f"{SCORES} -> scores = torch.einsum('...qd,...kd->...qk', rows, key) * query.size(-1) ** -0.5"],
        [f"{SCORES} -> scores = (rows / math.sqrt(rows.size(-1))) @ key.mT", f"{WEIGHTS} -> e = (scores - scores.amax(-1, keepdim=True)).exp(); weights = e / e.sum(-1, keepdim=True)"],
    )
]
