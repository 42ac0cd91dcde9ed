"""Answers to the exercises about decoding with a cache (chapter 10)."""

from tests.answers import Answer, edit

TRIL = '''
def offset_causal_mask(queries, keys):
    ones = torch.ones(1, queries, keys, dtype=torch.bool)
    return ones.tril(keys - queries)
'''

COMPARED = '''
def offset_causal_mask(queries, keys):
    i = torch.arange(queries)[:, None] + (keys - queries)
    j = torch.arange(keys)[None]
    return (j <= i)[None]
'''

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

GENERATE = '''
import mha_lib

def generate(model, prompt, count):
    caches = model.new_caches()
    mask = mha_lib.causal_mask(prompt.size(1))
    scores = model(prompt, mask, caches)
    tokens = prompt
    for i in range(count):
        new = scores[:, -1:].argmax(dim=-1)
        tokens = torch.cat([tokens, new], dim=1)
        if i + 1 < count:
            scores = model(new, None, caches)
    return tokens
'''

SHORT = '''
from mha_lib import causal_mask

def generate(model, prompt, count):
    caches, new, pieces = model.new_caches(), prompt, [prompt]
    for _ in range(count):
        kept = len(caches[0])
        mask = causal_mask(new.size(1), keys=kept + new.size(1))
        new = model(new, mask, caches)[:, -1].argmax(-1)[:, None]
        pieces.append(new)
    return torch.cat(pieces, 1)
'''

WRONG = [
    Answer("offset_causal_mask", "offset_causal_mask", edit(base, *changes), id)
    for id, base, *changes in [
        ("offset_top_left", TRIL, "tril(keys - queries) -> tril()"),
        ("offset_top_left", COMPARED, " + (keys - queries) -> "),
        ("offset_square", TRIL, "ones.tril(keys - queries) -> ones[:, :, :queries].tril()"),
        ("offset_square", TRIL, "ones.tril(keys - queries) -> torch.ones(1, keys, keys).tril().bool()"),
        ("offset_all_allowed", TRIL, "ones.tril(keys - queries) -> ones"),
        ("offset_excludes_self", COMPARED, "j <= i -> j < i"),
        ("offset_sees_next", TRIL, "keys - queries) -> keys - queries + 1)"),
        ("offset_inverted", COMPARED, "j <= i -> j > i"),
        ("offset_upper", TRIL, "tril(keys - queries) -> triu(keys - queries)"),
        ("offset_wrong_way", TRIL, "keys - queries) -> queries - keys)"),
        ("offset_new_only", TRIL, "return ones.tril(keys - queries) -> new = torch.ones(queries, queries).tril().bool()\n    return torch.cat([torch.zeros(queries, keys - queries).bool(), new], 1)[None]"),
        ("offset_kept_only", TRIL, "ones.tril(keys - queries) -> ones & (torch.arange(keys) < keys - queries)"),
        ("offset_window", TRIL, "ones.tril(keys - queries) -> ones.tril(keys - queries).triu()"),
        ("offset_transposed", TRIL, "ones.tril(keys - queries) -> ones.tril(keys - queries).mT"),
        ("offset_flipped", TRIL, "ones.tril(keys - queries) -> ones.tril(keys - queries).flip(1)"),
        ("mask_not_bool", TRIL, ", dtype=torch.bool -> "),
    ]
] + [
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
        ("not_a_number", "numbers * bytes_per_number -> f'{numbers * bytes_per_number} bytes'"),
    ]
] + [
    Answer("generate", "generate", edit(base, *changes), id)
    for id, base, *changes in [
        ("gen_reads_again", SHORT, "    for _ in range(count): -> \n    for _ in range(count):\n        caches, new = model.new_caches(), torch.cat(pieces, 1)"),
        ("gen_reads_again", GENERATE, "scores = model(new, None, caches) -> scores = model(tokens, mha_lib.causal_mask(tokens.size(1)))"),
        (
            "gen_prompt_one_by_one",
            GENERATE,
            "scores = model(prompt, mask, caches) -> for t in range(prompt.size(1)):\n        scores = model(prompt[:, t : t + 1], None, caches)",
        ),
        ("gen_whole_text_into_cache", GENERATE, "model(new, None, caches) -> model(tokens, None, caches)", "mha_lib.causal_mask(prompt.size(1)) -> None"),
        ("gen_prompt_without_mask", GENERATE, "mha_lib.causal_mask(prompt.size(1)) -> None"),
        ("gen_top_left", SHORT, "causal_mask(new.size(1), keys=kept + new.size(1)) -> torch.ones(new.size(1), kept + new.size(1)).tril().bool()"),
        ("gen_square_mask", SHORT, "causal_mask(new.size(1), keys=kept + new.size(1)) -> causal_mask(new.size(1))"),
        ("gen_fresh_caches", GENERATE, "model(new, None, caches) -> model(new, None, model.new_caches())"),
        ("gen_fresh_caches", GENERATE, "model(new, None, caches) -> model(new)", "model(prompt, mask, caches) -> model(prompt, mask)"),
        ("gen_prompt_not_kept", GENERATE, "model(prompt, mask, caches) -> model(prompt, mask)"),
        ("gen_last_of_prompt_twice", GENERATE, "scores = model(prompt, mask, caches) -> model(prompt, mask, caches)\n    scores = model(prompt[:, -1:], None, caches)"),
        ("gen_one_too_few", GENERATE, "return tokens -> return tokens[:, :-1]"),
        ("gen_one_too_few", SHORT, "        pieces.append(new) -> ", "        new = model ->         pieces.append(new)\n        new = model", "[prompt] -> []"),
        ("gen_one_too_many", GENERATE, "range(count) -> range(count + 1)", "i + 1 < count -> i < count"),
        ("gen_without_prompt", SHORT, "[prompt] -> []"),
        ("gen_first_row", GENERATE, "scores[:, -1:] -> scores[:, :1]"),
        ("gen_one_text_for_all", SHORT, "[:, -1].argmax(-1)[:, None] -> [0, -1].argmax().expand(len(prompt), 1)"),
        ("gen_least_likely", GENERATE, "argmax -> argmin"),
        ("gen_written_in_front", GENERATE, "[tokens, new] -> [new, tokens]"),
        ("gen_one_cache_for_all_layers", GENERATE, "model.new_caches() -> [mha_lib.KeyValueCache()] * len(model.layers)"),
        ("gen_caches_of_another_text", SHORT, "def generate(model, prompt, count): -> def generate(model, prompt, count, kept_caches=[]):", "caches, new, pieces = model.new_caches(), prompt, [prompt] -> kept_caches.extend([] if kept_caches else model.new_caches())\n    caches, new, pieces = kept_caches, prompt, [prompt]"),
    ]
]

RIGHT = [
    *(Answer("offset_causal_mask", "offset_causal_mask", source) for source in (TRIL, COMPARED)),
    Answer("offset_causal_mask", "offset_causal_mask", "def offset_causal_mask(queries, keys):\n    return torch.ones(keys, keys).tril()[-queries:].bool()\n"),
    Answer("offset_causal_mask", "offset_causal_mask", "def offset_causal_mask(queries, keys):\n    return ~torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)\n"),
    Answer(
        "offset_causal_mask",
        "offset_causal_mask",
        "def offset_causal_mask(queries, keys):\n    old = torch.ones(1, queries, keys - queries).bool()\n    new = torch.ones(1, queries, queries).tril().bool()\n    return torch.cat([old, new], 2)\n",
    ),
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
    *(Answer("cache_bytes", "cache_bytes", source) for source in (BYTES, MEASURED)),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(*sizes):\n    return 2 * math.prod(sizes)\n"),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(batch, length, num_heads, d_k, num_layers, bytes_per_number):\n    return sum(2 * batch * length * num_heads * d_k * bytes_per_number for _ in range(num_layers))\n"),
    Answer("cache_bytes", "cache_bytes", "def cache_bytes(b, t, h, d, layers, size):\n    return torch.tensor([2, b, t, h, d, layers, size]).prod()\n"),
    *(Answer("generate", "generate", source) for source in (GENERATE, SHORT)),
    Answer("generate", "generate", edit(GENERATE, "        if i + 1 < count: -> \n        if True:")),
    Answer("generate", "generate", edit(GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores[:, -1].softmax(-1).topk(1).indices")),
    Answer(
        "generate",
        "generate",
        "import mha_lib\ndef generate(model, prompt, count):\n    B, T = prompt.shape\n    tokens = torch.zeros(B, T + count, dtype=torch.long)\n    tokens[:, :T] = prompt\n"
        "    caches = [mha_lib.KeyValueCache() for _ in model.layers]\n    for t in range(T, T + count):\n        part = tokens[:, :T] if t == T else tokens[:, t - 1 : t]\n"
        "        mask = mha_lib.causal_mask(T) if t == T else None\n        tokens[:, t] = model(part, mask, caches)[:, -1].max(-1).indices\n    return tokens\n",
    ),
]
