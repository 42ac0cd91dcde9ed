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
        ("offset_row_for_every_key", TRIL, "ones.tril(keys - queries) -> torch.ones(1, keys, keys).tril().bool()"),
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
        ("offset_transposed", TRIL, "ones.tril(keys - queries) -> torch.ones(1, keys, keys).tril().bool()[:, :, -queries:]"),
        ("offset_from_behind", TRIL, "ones.tril(keys - queries) -> ones.tril().flip(2)"),
        ("offset_moved_otherwise", TRIL, "tril(keys - queries) -> tril(queries)"),
        ("offset_flipped", TRIL, "ones.tril(keys - queries) -> ones.tril(keys - queries).flip(1)"),
        ("mask_not_bool", TRIL, ", dtype=torch.bool -> "),
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
        ("gen_mask_inverted", GENERATE, "mask = mha_lib.causal_mask(prompt.size(1)) -> mask = ~mha_lib.causal_mask(prompt.size(1))"),
        ("gen_old_token_again", GENERATE, "model(new, None, caches) -> model(tokens[:, -2:-1], None, caches)"),
        ("gen_count_is_the_total", GENERATE, "    for i in range(count):\n        new = scores[:, -1:].argmax(dim=-1) ->     i = 0\n    while tokens.size(1) < count:\n        new = scores[:, -1:].argmax(dim=-1)"),
        ("gen_every_row", GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores.argmax(dim=-1)"),
        ("gen_largest_of_another_axis", GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores[:, -1:].argmax(dim=1)"),
        ("gen_drawn", GENERATE, "scores[:, -1:].argmax(dim=-1) -> torch.multinomial(scores[:, -1].softmax(-1), 1)"),
        ("joined_axes_differ", GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores[:, -1].argmax(dim=-1)"),
        ("indices_are_floats", GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores[:, -1:].amax(dim=-1)"),
        ("token_unknown", GENERATE, "scores[:, -1:].argmax(dim=-1) -> scores[:, -1].argmax().expand(len(prompt), 1)"),
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
    Answer("offset_causal_mask", "offset_causal_mask", "def offset_causal_mask(queries, keys):\n    return torch.tensor([[j + queries <= i + keys for j in range(keys)] for i in range(queries)])[None]\n"),
]
