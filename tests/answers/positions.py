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
        ("sin_power_of_the_base_alone", LOOP, "math.sin(p / 10000 ** (i / d_model)) -> math.sin(p / (10000 ** 2 * (i // 2) / d_model) if i else p)", "math.cos(p / 10000 ** (i / d_model)) -> math.cos(p / (10000 ** 2 * (i // 2) / d_model) if i else p)"),
        ("sin_other_divisor", EXP, "(-math.log(10000.0) / d_model) -> (-math.log(10000.0) / (d_model - 2))"),
        ("sin_other_divisor", TABLE, "(even / d_model) -> (even / (d_model - 1))"),
        ("sin_full_circles", TABLE, "angle = place -> angle = 2 * math.pi * place"),
        ("sin_degrees", TABLE, "torch.sin(angle) -> torch.sin(torch.deg2rad(angle))", "torch.cos(angle) -> torch.cos(torch.deg2rad(angle))"),
        ("sin_whole_angles", TABLE, "place / 10000 -> place // 10000"),
        ("sin_other_angles", TABLE, "(even / d_model) -> (even / d_model + 0.25)"),
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
        ("rot_degrees", ROTATE, "angle = positions[:, None] * speed -> angle = torch.deg2rad(positions[:, None] * speed)"),
        ("rot_full_circles", ROTATE, "angle = positions[:, None] * speed -> angle = 2 * torch.pi * positions[:, None] * speed"),
        ("rot_halves_exchanged", ROTATE, "[x1 * cos - x2 * sin, x2 * cos + x1 * sin] -> [x2 * cos + x1 * sin, x1 * cos - x2 * sin]"),
        ("rot_halves_off_by_one", ROTATE, "x[..., d_k // 2 :] -> x[..., d_k // 2 - 1 : -1]"),
        ("rot_joined_on_another_axis", ROTATE, "x2 * cos + x1 * sin], dim=-1) -> x2 * cos + x1 * sin])"),
        ("rot_other_angles", ROTATE, "torch.arange(0, d_k, 2).float() / d_k -> torch.arange(d_k // 2) / (2 * d_k)"),
        ("rot_other_base", COMPLEX, "10000.0 -> 1000.0"),
        ("rot_changes_its_input", ROTATE, "    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1) ->     y = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)\n    x.data.copy_(y)\n    return y"),
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
    Answer(
        "rotate",
        "rotate",
        "def rotate(x, positions):\n    half = x.size(-1) // 2\n    angle = positions.unsqueeze(-1) * torch.exp(-math.log(10000) * torch.arange(half) / half)\n"
        "    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2)\n"
        "    return torch.einsum('tiab,...tib->...tai', turn, x.unflatten(-1, (2, half)).transpose(-1, -2)).flatten(-2)\n",
    ),
]
