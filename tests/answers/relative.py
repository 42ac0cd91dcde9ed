"""Answers to the exercises of checks/exercises/relative.py (chapter 9)."""

from tests.answers import Answer, edit

SCORES = '''
import mha_lib
from mha_lib.positions import rotate

def relative_scores(query, key, num_heads):
    q = mha_lib.split_heads(query, num_heads)
    k = mha_lib.split_heads(key, num_heads)
    places = torch.arange(k.size(-2))
    q = rotate(q, places[-q.size(-2):])
    k = rotate(k, places)
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
'''

BY_HAND = '''
from mha_lib.positions import rotate

def relative_scores(query, key, num_heads):
    B, Tq, d = query.shape
    Tk = key.size(1)
    q = query.view(B, Tq, num_heads, -1)
    k = key.view(B, Tk, num_heads, -1)
    q = q.transpose(1, 2)
    k = k.transpose(1, 2)
    q = rotate(q, torch.arange(Tk - Tq, Tk))
    k = rotate(k, torch.arange(0, Tk))
    return torch.einsum("bhqd,bhkd->bhqk", q, k) * q.size(-1) ** -0.5
'''

SWAP = '''
def swap_layout(weight, num_heads):
    heads = weight.view(num_heads, -1, weight.size(1))
    order = list(range(0, heads.size(1), 2)) + list(range(1, heads.size(1), 2))
    return heads[:, order].reshape(weight.shape)
'''

PERMUTE = '''
def swap_layout(weight, num_heads):
    rows, columns = weight.shape
    d_k = rows // num_heads
    return weight.reshape(num_heads, d_k // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
'''

WRONG = [
    Answer("relative_scores", "relative_scores", edit(base, *changes), id)
    for id, base, *changes in [
        (
            "rel_turned_before_the_split",
            BY_HAND,
            "    q = query.view -> \n    query = rotate(query, torch.arange(Tk - Tq, Tk))\n    key = rotate(key, torch.arange(0, Tk))\n    q = query.view",
            "    q = rotate(q, torch.arange(Tk - Tq, Tk)) -> ",
            "    k = rotate(k, torch.arange(0, Tk)) -> ",
        ),
        ("rel_queries_from_zero", SCORES, "places[-q.size(-2):] -> places[:q.size(-2)]"),
        ("rel_queries_from_zero", BY_HAND, "torch.arange(Tk - Tq, Tk) -> torch.arange(Tq)"),
        ("rel_queries_after_the_keys", BY_HAND, "torch.arange(Tk - Tq, Tk) -> torch.arange(Tk, Tk + Tq)"),
        ("rel_off_by_one", BY_HAND, "torch.arange(Tk - Tq, Tk) -> torch.arange(Tk - Tq + 1, Tk + 1)"),
        ("rel_query_not_turned", SCORES, "    q = rotate(q, places[-q.size(-2):]) -> "),
        ("rel_key_not_turned", SCORES, "    k = rotate(k, places) -> "),
        ("rel_not_turned", SCORES, "    q = rotate(q, places[-q.size(-2):]) -> ", "    k = rotate(k, places) -> "),
        ("rel_turned_twice", SCORES, "rotate(k, places) -> rotate(rotate(k, places), places)"),
        ("rel_not_turned", BY_HAND, "    q = q.transpose(1, 2) ->     q = rotate(q, torch.arange(num_heads)).transpose(1, 2)", "    k = k.transpose(1, 2) ->     k = rotate(k, torch.arange(num_heads)).transpose(1, 2)", "    q = rotate(q, torch.arange(Tk - Tq, Tk)) -> ", "    k = rotate(k, torch.arange(0, Tk)) -> "),
        ("rel_split_by_view", BY_HAND, "query.view(B, Tq, num_heads, -1) -> query.view(B, num_heads, Tq, -1)", "key.view(B, Tk, num_heads, -1) -> key.view(B, num_heads, Tk, -1)", "    q = q.transpose(1, 2) -> ", "    k = k.transpose(1, 2) -> "),
        ("rel_not_divided", SCORES, " / math.sqrt(q.size(-1)) -> "),
        ("rel_divided_otherwise", SCORES, "math.sqrt(q.size(-1)) -> math.sqrt(query.size(-1))"),
        ("rel_weights", SCORES, "return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) -> return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)"),
        ("rel_masked", SCORES, "return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) -> scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\n    future = torch.ones_like(scores).triu(1 + k.size(2) - q.size(2)).bool()\n    return scores.masked_fill(future, float('-inf'))"),
        ("rel_heads_averaged", SCORES, "return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) -> return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).mean(dim=1)"),
        ("rel_counted_backwards", SCORES, "rotate(k, places) -> rotate(k, places.flip(0))"),
        ("rel_turned_by_distance", SCORES, "    q = rotate(q, places[-q.size(-2):]) -> ", "rotate(k, places) -> rotate(k, places[-q.size(-2):] - places)"),
        ("rel_divided_otherwise", SCORES, "math.sqrt(q.size(-1)) -> math.sqrt(num_heads)"),
        ("rel_transposed", SCORES, "q @ k.transpose(-2, -1) -> k @ q.transpose(-2, -1)"),
    ]
] + [
    Answer("swap_layout", "swap_layout", edit(base, *changes), id)
    for id, base, *changes in [
        ("swap_other_way", PERMUTE, "num_heads, d_k // 2, 2, columns -> num_heads, 2, d_k // 2, columns"),
        ("swap_over_the_width", SWAP, "heads = weight.view(num_heads, -1, weight.size(1)) -> heads = weight[None]"),
        ("swap_over_the_width_and_back", PERMUTE, "weight.reshape(num_heads, d_k // 2, 2, columns).transpose(1, 2) -> weight.reshape(2, rows // 2, columns).transpose(0, 1)"),
        ("swap_columns", SWAP, "return heads[:, order].reshape(weight.shape) -> columns = list(range(0, weight.size(1), 2)) + list(range(1, weight.size(1), 2))\n    return weight[:, columns]"),
        ("swap_nothing", SWAP, "heads[:, order] -> heads"),
        ("swap_heads_and_features", PERMUTE, "weight.reshape(num_heads, d_k // 2, 2, columns).transpose(1, 2) -> weight.reshape(d_k // 2, 2, num_heads, columns).transpose(0, 1)"),
        ("swap_halves_exchanged", SWAP, "list(range(0, heads.size(1), 2)) + list(range(1, heads.size(1), 2)) -> list(range(heads.size(1) // 2, heads.size(1))) + list(range(heads.size(1) // 2))"),
        ("swap_odd_first", SWAP, "list(range(0, heads.size(1), 2)) + list(range(1, heads.size(1), 2)) -> list(range(1, heads.size(1), 2)) + list(range(0, heads.size(1), 2))"),
        ("swap_neighbours_exchanged", PERMUTE, ".transpose(1, 2) -> .flip(2)"),
        ("swap_half_of_the_rows", SWAP, "return heads[:, order].reshape(weight.shape) -> half = heads[:, 0::2]\n    return torch.cat([half, torch.zeros_like(half)], 1).reshape(weight.shape)"),
        ("joined_on_wrong_axis", SWAP, "return heads[:, order].reshape(weight.shape) -> return torch.cat([head[order] for head in heads], dim=1)"),
        ("swap_first_head_only", SWAP, "return heads[:, order].reshape(weight.shape) -> new = weight.clone()\n    new[: heads.size(1)] = heads[0, order]\n    return new"),
        ("swap_one_order_for_all", SWAP, "return heads[:, order].reshape(weight.shape) -> return weight[order * num_heads]"),
        ("swap_heads_not_joined", SWAP, ".reshape(weight.shape) -> "),
        ("swap_transposed", SWAP, ".reshape(weight.shape) -> .reshape(weight.shape).T"),
        ("swap_changes_its_input", SWAP, "return heads[:, order].reshape(weight.shape) -> weight.copy_(heads[:, order].reshape(weight.shape))\n    return weight"),
    ]
]

RIGHT = [
    *(Answer("relative_scores", "relative_scores", source) for source in (SCORES, BY_HAND)),
    Answer(  # only the distance counts, so all places may be moved together
        "relative_scores", "relative_scores", edit(SCORES, "places = torch.arange(k.size(-2)) -> places = torch.arange(k.size(-2)) + 5")
    ),
    Answer(
        "relative_scores",
        "relative_scores",
        "from mha_lib.positions import rotate\ndef relative_scores(query, key, num_heads):\n    parts = []\n    Tq, Tk = query.size(1), key.size(1)\n"
        "    for q, k in zip(query.chunk(num_heads, -1), key.chunk(num_heads, -1)):\n        q, k = rotate(q, torch.arange(Tk)[Tk - Tq:]), rotate(k, torch.arange(Tk))\n"
        "        parts.append(q / q.size(-1) ** 0.5 @ k.mT)\n    return torch.stack(parts, 1)\n",
    ),
    Answer(
        "relative_scores",
        "relative_scores",
        "from mha_lib import split_heads\nfrom mha_lib.positions import rotate\ndef relative_scores(query, key, num_heads):\n"
        "    q, k = split_heads(query, num_heads), split_heads(key, num_heads)\n    n = k.size(2)\n    padded = F.pad(q, (0, 0, n - q.size(2), 0))\n"
        "    table = rotate(padded, torch.arange(n)) @ rotate(k, torch.arange(n)).transpose(2, 3)\n    return table[:, :, n - q.size(2):] / math.sqrt(q.size(3))\n",
    ),
    *(Answer("swap_layout", "swap_layout", source) for source in (SWAP, PERMUTE)),
    Answer(
        "swap_layout",
        "swap_layout",
        "def swap_layout(weight, num_heads):\n    d_k = weight.size(0) // num_heads\n    rows = []\n    for h in range(num_heads):\n        head = weight[h * d_k : (h + 1) * d_k]\n"
        "        rows += [head[0::2], head[1::2]]\n    return torch.cat(rows)\n",
    ),
    Answer(
        "swap_layout",
        "swap_layout",
        "def swap_layout(weight, num_heads):\n    i = torch.arange(weight.size(0)).view(num_heads, -1, 2).mT.flatten()\n    return weight[i]\n",
    ),
    Answer(
        "swap_layout",
        "swap_layout",
        "def swap_layout(weight, num_heads):\n    w = weight.clone()\n    d = len(w) // num_heads\n    for r in range(len(w)):\n        h, f = divmod(r, d)\n"
        "        w[h * d + f // 2 + (f % 2) * (d // 2)] = weight[r]\n    return w\n",
    ),
    Answer(
        "relative_scores",
        "relative_scores",
        "import mha_lib\ndef relative_scores(query, key, num_heads):\n    tables = []\n    for q, k in zip(query.chunk(num_heads, -1), key.chunk(num_heads, -1)):\n"
        "        q = mha_lib.rotate(q, torch.arange(k.size(1) - q.size(1), k.size(1)))\n"
        "        tables.append(q @ mha_lib.rotate(k, torch.arange(k.size(1))).mT / q.size(-1) ** 0.5)\n    return torch.stack(tables, 1)\n",
    ),
    Answer("swap_layout", "swap_layout", "def swap_layout(weight, num_heads):\n    return torch.vstack([head[i::2] for head in weight.tensor_split(num_heads) for i in (0, 1)])\n"),
]
