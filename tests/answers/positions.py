"""Answers to the exercises about positions (chapter 9)."""

from tests.answers import Answer, edit

TABLE = '''
def sinusoidal(length, d_model):
    place = torch.arange(length).float().unsqueeze(1)
    even = torch.arange(0, d_model, 2).float()
    angle = place / 10000 ** (even / d_model)
    table = torch.zeros(length, d_model)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)
    return table
'''

LOOP = '''
def sinusoidal(length, d_model):
    table = torch.zeros(length, d_model)
    for p in range(length):
        for i in range(0, d_model, 2):
            table[p, i] = math.sin(p / 10000 ** (i / d_model))
            table[p, i + 1] = math.cos(p / 10000 ** (i / d_model))
    return table
'''

EXP = '''
def sinusoidal(length, d_model):
    speed = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angle = torch.arange(length)[:, None] * speed
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, d_model)
'''

ROTATE = '''
def rotate(x, positions):
    d_k = x.size(-1)
    speed = 1.0 / 10000 ** (torch.arange(0, d_k, 2).float() / d_k)
    angle = positions[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    x1, x2 = x[..., : d_k // 2], x[..., d_k // 2 :]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)
'''

LLAMA = '''
def swap(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)

def rotate(x, positions):
    d = x.shape[-1]
    speed = 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d))
    angle = torch.outer(positions.float(), speed)
    both = torch.cat((angle, angle), dim=-1)
    return x * both.cos() + swap(x) * both.sin()
'''

COMPLEX = '''
def rotate(x, positions):
    half = x.size(-1) // 2
    z = torch.complex(x[..., :half], x[..., half:])
    angle = positions.float()[:, None] * 10000.0 ** (-torch.arange(half) / half)
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1)
'''

LOOPED = '''
def rotate(x, positions):
    out = torch.empty_like(x)
    half = x.size(-1) // 2
    for i in range(half):
        for t, p in enumerate(positions.tolist()):
            a = p * 10000 ** (-2 * i / x.size(-1))
            out[..., t, i] = x[..., t, i] * math.cos(a) - x[..., t, i + half] * math.sin(a)
            out[..., t, i + half] = x[..., t, i + half] * math.cos(a) + x[..., t, i] * math.sin(a)
    return out
'''

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
    Answer("sinusoidal", "sinusoidal", edit(base, *changes), id)
    for id, base, *changes in [
        ("sin_exponent_doubled", TABLE, "(even / d_model) -> (2 * even / d_model)"),
        ("sin_exponent_doubled", EXP, "torch.arange(0, d_model, 2) * -> 2 * torch.arange(0, d_model, 2) *"),
        ("sin_exponent_halved", TABLE, "torch.arange(0, d_model, 2).float() -> torch.arange(d_model // 2).float()"),
        ("sin_pairs_from_one", TABLE, "torch.arange(0, d_model, 2).float() -> torch.arange(2, d_model + 1, 2).float()"),
        ("sin_two_speeds_in_a_pair", LOOP, "math.cos(p / 10000 ** (i / d_model)) -> math.cos(p / 10000 ** ((i + 1) / d_model))"),
        (
            "sin_two_speeds_in_a_pair",
            LOOP,
            "math.sin(p / 10000 ** (i / d_model)) -> math.sin(p / 10000 ** (2 * i / d_model))",
            "math.cos(p / 10000 ** (i / d_model)) -> math.cos(p / 10000 ** (2 * (i + 1) / d_model))",
        ),
        ("sin_two_blocks", EXP, "torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, d_model) -> torch.cat([angle.sin(), angle.cos()], dim=-1)"),
        ("sin_cosine_first", TABLE, "table[:, 0::2] = torch.sin(angle) -> table[:, 1::2] = torch.sin(angle)", "table[:, 1::2] = torch.cos(angle) -> table[:, 0::2] = torch.cos(angle)"),
        ("sin_one_wave", TABLE, "torch.cos(angle) -> torch.sin(angle)"),
        ("sin_places_from_one", TABLE, "torch.arange(length).float() -> torch.arange(1, length + 1).float()"),
        ("sin_speeds_grow", TABLE, "place / 10000 -> place * 10000"),
        ("sin_speeds_grow", EXP, "(-math.log(10000.0) / d_model) -> (math.log(10000.0) / d_model)"),
        ("sin_other_base", TABLE, "10000 -> 1000"),
        ("sin_other_logarithm", EXP, "math.log(10000.0) -> math.log10(10000.0)"),
        ("sin_half_the_width", EXP, "torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, d_model) -> angle.sin()"),
        ("sin_pairs_not_joined", EXP, ".reshape(length, d_model) -> "),
        ("sin_places_as_columns", TABLE, "return table -> return table.T"),
        ("sin_batch_axis", TABLE, "return table -> return table.unsqueeze(0)"),
        ("all_alike", TABLE, "table[:, 0::2] = torch.sin(angle) -> pass", "table[:, 1::2] = torch.cos(angle) -> pass"),
        ("returned_none", TABLE, "return table -> table"),
    ]
] + [
    Answer("rotate", "rotate", edit(base, *changes), id)
    for id, base, *changes in [
        ("rot_neighbours", ROTATE, "x[..., : d_k // 2], x[..., d_k // 2 :] -> x[..., 0::2], x[..., 1::2]", "torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1) -> torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten(-2)"),
        ("rot_layouts_mixed", LLAMA, "torch.cat((angle, angle), dim=-1) -> angle.repeat_interleave(2, dim=-1)"),
        ("rot_layouts_mixed", LLAMA, "a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :] -> a, b = x[..., 0::2], x[..., 1::2]", "return torch.cat((-b, a), dim=-1) -> return torch.stack((-b, a), dim=-1).reshape(x.shape)"),
        ("rot_joined_otherwise", ROTATE, "torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1) -> torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten(-2)"),
        ("rot_joined_otherwise", ROTATE, "x[..., : d_k // 2], x[..., d_k // 2 :] -> x[..., 0::2], x[..., 1::2]"),
        ("rot_backwards", ROTATE, "x1 * cos - x2 * sin, x2 * cos + x1 * sin -> x1 * cos + x2 * sin, x2 * cos - x1 * sin"),
        ("rot_backwards", LLAMA, "(-b, a) -> (b, -a)"),
        ("rot_no_minus", LLAMA, "(-b, a) -> (b, a)"),
        ("rot_both_minus", LLAMA, "(-b, a) -> (-b, -a)"),
        ("rot_uses_new_first", ROTATE, "    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1) ->     x1 = x1 * cos - x2 * sin\n    x2 = x2 * cos + x1 * sin\n    return torch.cat([x1, x2], dim=-1)"),
        ("rot_sine_and_cosine_exchanged", ROTATE, "angle.cos(), angle.sin() -> angle.sin(), angle.cos()"),
        ("rot_second_half_left", ROTATE, "x2 * cos + x1 * sin] -> x2]"),
        ("rot_only_scaled", LLAMA, "x * both.cos() + swap(x) * both.sin() -> x * both.cos()"),
        ("rot_added", ROTATE, "[x1 * cos - x2 * sin, x2 * cos + x1 * sin] -> [x1 + sin, x2 + cos]"),
        ("rot_counts_heads", ROTATE, "positions[:, None] * speed -> (torch.arange(x.size(1))[:, None, None] if x.dim() == 4 else positions[:, None]) * speed"),
        ("rot_positions_on_heads", ROTATE, "positions[:, None] * speed -> positions[:, None, None] * speed"),
        ("rot_counts_from_zero", ROTATE, "positions[:, None] * speed -> torch.arange(x.size(-2))[:, None] * speed"),
        ("rot_one_too_far", ROTATE, "positions[:, None] * speed -> (positions[:, None] + 1) * speed"),
        ("rot_exponent_doubled", ROTATE, "(torch.arange(0, d_k, 2).float() / d_k) -> (2 * torch.arange(0, d_k, 2).float() / d_k)"),
        ("rot_exponent_halved", ROTATE, "torch.arange(0, d_k, 2).float() -> torch.arange(d_k // 2).float()"),
        ("rot_speeds_grow", ROTATE, "1.0 / 10000 -> 1.0 * 10000"),
        ("rot_one_speed", ROTATE, "1.0 / 10000 ** (torch.arange(0, d_k, 2).float() / d_k) -> torch.ones(d_k // 2)"),
        ("rot_other_base", COMPLEX, "10000.0 -> 1000.0"),
        ("rot_changes_its_input", ROTATE, "    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1) ->     y = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)\n    x.data.copy_(y)\n    return y"),
    ]
] + [
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
        ("swap_first_head_only", SWAP, "return heads[:, order].reshape(weight.shape) -> new = weight.clone()\n    new[: heads.size(1)] = heads[0, order]\n    return new"),
        ("swap_one_order_for_all", SWAP, "return heads[:, order].reshape(weight.shape) -> return weight[order * num_heads]"),
        ("swap_heads_not_joined", SWAP, ".reshape(weight.shape) -> "),
        ("swap_transposed", SWAP, ".reshape(weight.shape) -> .reshape(weight.shape).T"),
        ("swap_changes_its_input", SWAP, "return heads[:, order].reshape(weight.shape) -> weight.copy_(heads[:, order].reshape(weight.shape))\n    return weight"),
    ]
]

RIGHT = [
    *(Answer("sinusoidal", "sinusoidal", source) for source in (TABLE, LOOP, EXP)),
    Answer(
        "sinusoidal",
        "sinusoidal",
        "def sinusoidal(length, d_model):\n    j = torch.arange(d_model)\n    angle = torch.arange(length)[:, None] / 10000 ** ((j - j % 2) / d_model)\n"
        "    return torch.where(j % 2 == 0, angle.sin(), angle.cos())\n",
    ),
    Answer(
        "sinusoidal",
        "sinusoidal",
        "def sinusoidal(length, d_model):\n    j = torch.arange(d_model)\n"
        "    return (torch.arange(length)[:, None] / 10000 ** (2 * (j // 2) / d_model) + (j % 2) * math.pi / 2).sin()\n",
    ),
    Answer(
        "sinusoidal",
        "sinusoidal",
        "import numpy as np\ndef sinusoidal(length, d_model):\n    a = np.arange(length)[:, None] / np.power(10000, np.arange(0, d_model, 2) / d_model)\n"
        "    t = np.empty((length, d_model))\n    t[:, ::2], t[:, 1::2] = np.sin(a), np.cos(a)\n    return torch.tensor(t, dtype=torch.float32)\n",
    ),
    *(Answer("rotate", "rotate", source) for source in (ROTATE, LLAMA, COMPLEX, LOOPED)),
    Answer(
        "rotate",
        "rotate",
        "def rotate(x, positions):\n    a, b = x.unflatten(-1, (2, -1)).unbind(-2)\n    f = torch.outer(positions.double(), 10000.0 ** (-torch.arange(a.size(-1)).double() / a.size(-1)))\n"
        "    c, s = f.cos().float(), f.sin().float()\n    return torch.stack([a * c - b * s, a * s + b * c], -2).flatten(-2)\n",
    ),
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
]
