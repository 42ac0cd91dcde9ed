"""Answers to the exercises of checks/exercises/cache.py (chapter 10)."""

from tests.answers import Answer, edit

STEP = '''
import mha_lib

def step(layer, x, cache):
    n = cache["length"]
    q = mha_lib.split_heads(layer.w_q(x), layer.num_heads)
    k = mha_lib.split_heads(layer.w_k(x), layer.num_heads)
    v = mha_lib.split_heads(layer.w_v(x), layer.num_heads)
    place = torch.tensor([n])
    q = mha_lib.rotate(q, place)
    k = mha_lib.rotate(k, place)
    cache["keys"][:, :, n : n + 1] = k
    cache["values"][:, :, n : n + 1] = v
    cache["length"] = n + 1
    keys = cache["keys"][:, :, : n + 1]
    values = cache["values"][:, :, : n + 1]
    output, _ = mha_lib.attention(q, keys, values)
    return layer.w_o(mha_lib.merge_heads(output))
'''

MASKED = '''
from mha_lib import rotate

def step(layer, x, cache):
    B, _, d = x.shape
    h = layer.num_heads
    at = cache["length"]
    q, k, v = (w(x).view(B, 1, h, d // h).transpose(1, 2) for w in (layer.w_q, layer.w_k, layer.w_v))
    q, k = rotate(q, torch.tensor([at])), rotate(k, torch.tensor([at]))
    cache["keys"][:, :, at] = k[:, :, 0]
    cache["values"][:, :, at] = v[:, :, 0]
    cache["length"] += 1
    scores = q @ cache["keys"].transpose(2, 3) / math.sqrt(d // h)
    scores = scores.masked_fill(torch.arange(scores.size(-1)) > at, float("-inf"))
    mixed = scores.softmax(-1) @ cache["values"]
    return layer.w_o(mixed.transpose(1, 2).reshape(B, 1, d))
'''

BYTES = '''
def cache_bytes(batch, length, num_heads, d_k, num_layers, bytes_per_number):
    numbers = 2 * num_layers * batch * length * num_heads * d_k
    return numbers * bytes_per_number
'''

MEASURED = '''
def cache_bytes(batch, length, num_heads, d_k, num_layers, bytes_per_number):
    key = torch.empty(batch, num_heads, length, d_k, device="meta")
    return num_layers * (key.numel() + key.numel()) * bytes_per_number
'''

WRONG = [
    Answer("step", "step", edit(base, *changes), id)
    for id, base, *changes in [
        ("step_from_zero", STEP, "torch.tensor([n]) -> torch.arange(x.size(1))"),
        ("step_from_zero", STEP, "    q = mha_lib.rotate(q, place) -> ", "    k = mha_lib.rotate(k, place) -> "),
        ("step_one_too_far", STEP, "torch.tensor([n]) -> torch.tensor([n + 1])"),
        ("step_query_not_turned", STEP, "    q = mha_lib.rotate(q, place) -> "),
        ("step_key_not_turned", STEP, "    k = mha_lib.rotate(k, place) -> "),
        ("step_value_turned", STEP, "    k = mha_lib.rotate(k, place) ->     k, v = mha_lib.rotate(k, place), mha_lib.rotate(v, place)"),
        ("step_turned_again", STEP, "    k = mha_lib.rotate(k, place) -> ", "keys = cache[\"keys\"][:, :, : n + 1] -> keys = mha_lib.rotate(cache[\"keys\"][:, :, : n + 1], torch.arange(n + 1))"),
        ("step_turned_again", STEP, "keys = cache[\"keys\"][:, :, : n + 1] -> keys = mha_lib.rotate(cache[\"keys\"][:, :, : n + 1], torch.arange(n + 1))"),
        ("step_turned_again", STEP, "    k = mha_lib.rotate(k, place) -> ", "keys = cache[\"keys\"][:, :, : n + 1] -> keys = cache[\"keys\"][:, :, : n + 1] = mha_lib.rotate(cache[\"keys\"][:, :, : n + 1], torch.arange(n + 1))"),
        ("step_empty_places_seen", STEP, "cache[\"keys\"][:, :, : n + 1] -> cache[\"keys\"]", "cache[\"values\"][:, :, : n + 1] -> cache[\"values\"]"),
        ("step_one_empty_place_seen", MASKED, "> at, -> > at + 1,"),
        ("step_itself_not_seen", MASKED, "> at, -> >= at,"),
        ("step_itself_not_seen", STEP, "cache[\"keys\"][:, :, : n + 1] -> cache[\"keys\"][:, :, :n]", "cache[\"values\"][:, :, : n + 1] -> cache[\"values\"][:, :, :n]"),
        ("step_new_alone", STEP, "mha_lib.attention(q, keys, values) -> mha_lib.attention(q, k, v)"),
        ("step_length_not_counted", STEP, "    cache[\"length\"] = n + 1 -> "),
        ("step_not_written", STEP, "    cache[\"keys\"][:, :, n : n + 1] = k -> ", "    cache[\"values\"][:, :, n : n + 1] = v -> ", "keys = cache[\"keys\"][:, :, : n + 1] -> keys = torch.cat([cache[\"keys\"][:, :, :n], k], 2)", "values = cache[\"values\"][:, :, : n + 1] -> values = torch.cat([cache[\"values\"][:, :, :n], v], 2)"),
        ("step_keys_not_written", STEP, "    cache[\"keys\"][:, :, n : n + 1] = k -> "),
        ("step_wrong_slot", STEP, "cache[\"keys\"][:, :, n : n + 1] = k -> cache[\"keys\"][:, :, n + 1 : n + 2] = k", "cache[\"values\"][:, :, n : n + 1] = v -> cache[\"values\"][:, :, n + 1 : n + 2] = v"),
        ("step_wrong_slot", STEP, "cache[\"keys\"][:, :, n : n + 1] = k -> cache[\"keys\"][:, :, :1] = k", "cache[\"values\"][:, :, n : n + 1] = v -> cache[\"values\"][:, :, :1] = v"),
        ("step_behind_the_room", STEP, "    cache[\"keys\"][:, :, n : n + 1] = k ->     cache[\"keys\"] = torch.cat([cache[\"keys\"], k], 2)", "    cache[\"values\"][:, :, n : n + 1] = v ->     cache[\"values\"] = torch.cat([cache[\"values\"], v], 2)", "keys = cache[\"keys\"][:, :, : n + 1] -> keys = cache[\"keys\"]", "values = cache[\"values\"][:, :, : n + 1] -> values = cache[\"values\"]"),
        ("step_turned_before_the_split", STEP, *(f"mha_lib.split_heads(layer.w_{x}(x), layer.num_heads) -> mha_lib.split_heads(mha_lib.rotate(layer.w_{x}(x), torch.tensor([n])), layer.num_heads)" for x in "qk"), "    q = mha_lib.rotate(q, place)\n -> ", "    k = mha_lib.rotate(k, place)\n -> "),
        ("step_counted_too_early", STEP, "n = cache[\"length\"] -> cache[\"length\"] += 1; n = cache[\"length\"]", "    cache[\"length\"] = n + 1\n -> "),
        ("step_one_in_both", STEP, "cache[\"values\"][:, :, n : n + 1] = v -> cache[\"values\"][:, :, n : n + 1] = k"),
        ("step_length_counted_otherwise", STEP, "cache[\"length\"] = n + 1 -> cache[\"length\"] = len(cache[\"keys\"])"),
        ("written_axes", STEP, "cache[\"keys\"][:, :, n : n + 1] = k -> cache[\"keys\"][:, :, n] = k"),
        ("no_tensor_here", STEP, "torch.tensor([n]) -> n"),
        ("step_on_the_head_axis", STEP, "keys = cache[\"keys\"][:, :, : n + 1] -> keys = torch.cat([cache[\"keys\"][:, :, :n], k], dim=1)", "values = cache[\"values\"][:, :, : n + 1] -> values = torch.cat([cache[\"values\"][:, :, :n], v], dim=1)"),
        ("step_output_kept", STEP, "    return layer -> \n    cache[\"values\"][:, :, n : n + 1] = output\n    return layer"),
        ("step_keys_and_values_exchanged", MASKED, "= k[:, :, 0] -> = v[:, :, 0]", "cache[\"values\"][:, :, at] = v[:, :, 0] -> cache[\"values\"][:, :, at] = k[:, :, 0]"),
        ("step_top_left", STEP, "output, _ = mha_lib.attention(q, keys, values) -> output = F.scaled_dot_product_attention(q, keys, values, is_causal=True)"),
        ("step_not_divided", MASKED, " / math.sqrt(d // h) -> "),
        ("step_divided_by_width", MASKED, "math.sqrt(d // h) -> math.sqrt(d)"),
        ("step_without_w_o", STEP, "layer.w_o(mha_lib.merge_heads(output)) -> mha_lib.merge_heads(output)"),
        ("returned_none", STEP, "    return layer.w_o ->     layer.w_o"),
    ]
] + [
    Answer("cache_bytes", "cache_bytes", edit(BYTES, *changes), id)
    for id, *changes in [
        ("bytes_one_of_two", "2 * num_layers * -> num_layers *"),
        ("bytes_one_layer", "2 * num_layers * -> 2 *"),
        ("bytes_one_text", "batch * length * -> length *"),
        ("bytes_one_token", "batch * length * -> batch *"),
        ("bytes_one_head", "length * num_heads * -> length *"),
        ("bytes_heads_not_wide", "num_heads * d_k -> num_heads"),
        ("bytes_numbers", "numbers * bytes_per_number -> numbers"),
        ("bytes_numbers", "numbers * bytes_per_number -> numbers * 4"),
        ("bytes_bits", "numbers * bytes_per_number -> numbers * bytes_per_number * 8"),
        ("bytes_other_unit", "numbers * bytes_per_number -> numbers * bytes_per_number / 1024**2"),
        ("bytes_table", "2 * num_layers * batch * length * num_heads * d_k -> num_layers * batch * num_heads * length * length"),
        ("bytes_queries_too", "2 * num_layers -> 3 * num_layers"),
        ("bytes_added", "2 * num_layers * -> 2 + num_layers *"),
        ("bytes_heads_twice", "num_heads * d_k -> num_heads * num_heads * d_k"),
        ("bytes_two_twice", "numbers * bytes_per_number -> 2 * numbers * bytes_per_number"),
        ("bytes_length_off", "batch * length * -> batch * (length - 1) *"),
        ("bytes_of_every_step", "batch * length * -> batch * sum(range(length)) *"),
        ("bytes_power", "numbers * bytes_per_number -> numbers // num_layers * num_layers**bytes_per_number"),
        ("bytes_added", "num_heads * d_k -> num_heads * d_k + num_layers"),
        ("wrong_factor", "numbers * bytes_per_number -> numbers / bytes_per_number"),
        ("not_a_number", "numbers * bytes_per_number -> f'{numbers * bytes_per_number} bytes'"),
    ]
]

RIGHT = [
    *(Answer("step", "step", source) for source in (STEP, MASKED)),
    Answer("step", "step", edit(STEP, "output, _ = mha_lib.attention(q, keys, values) -> output = F.scaled_dot_product_attention(q, keys, values)")),
    Answer(  # the tensors may be replaced, if they hold the same afterwards
        "step",
        "step",
        edit(
            STEP,
            "    cache[\"keys\"][:, :, n : n + 1] = k ->     cache[\"keys\"] = torch.cat([cache[\"keys\"][:, :, :n], k], dim=2)",
            "    cache[\"values\"][:, :, n : n + 1] = v ->     cache[\"values\"] = torch.cat([cache[\"values\"][:, :, :n], v], dim=2)",
        ),
    ),
    Answer("step", "step", edit(STEP, "    cache[\"length\"] = n + 1 -> ", "    return layer -> \n    cache[\"length\"] += x.size(1)\n    return layer")),
    Answer(
        "step",
        "step",
        edit(MASKED, "scores = scores.masked_fill(torch.arange(scores.size(-1)) > at, float(\"-inf\")) -> scores = scores + torch.zeros(scores.size(-1)).index_fill(0, torch.arange(at + 1, scores.size(-1)), -1e9)"),
    ),
    Answer("step", "step", edit(STEP, "    cache[\"keys\"][:, :, n : n + 1] = k ->     cache[\"keys\"].index_copy_(2, place, k)", "    cache[\"values\"][:, :, n : n + 1] = v ->     cache[\"values\"].index_copy_(2, place, v)")),
    *(Answer("cache_bytes", "cache_bytes", source) for source in (BYTES, MEASURED)),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(*sizes):\n    return 2 * math.prod(sizes)\n"),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(batch, length, num_heads, d_k, num_layers, bytes_per_number):\n    return sum(2 * batch * length * num_heads * d_k * bytes_per_number for _ in range(num_layers))\n"),
    Answer("cache_bytes", "cache_bytes", "import numpy as np\ndef cache_bytes(*sizes):\n    return 2 * np.prod(sizes)\n"),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(b, t, h, d, layers, size):\n    return torch.tensor([2, b, t, h, d, layers, size]).prod()\n"),
]
