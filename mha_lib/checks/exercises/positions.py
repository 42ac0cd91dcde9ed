"""The checks of chapter 9: positions added, positions turned, and two layouts of the pairs."""

import math

import torch
from torch import Tensor

from mha_lib import positions
from mha_lib.attention import attention
from mha_lib.checks import planted, read
from mha_lib.checks.case import Mistake, Probe, Sign
from mha_lib.checks.compare import close, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.hunt import BugHunt, Lucky
from mha_lib.checks.inputs import normal, numbered
from mha_lib.checks.recipe import Recipe
from mha_lib.heads import split_heads

BASE = 10_000.0

# -- the sinusoidal table


def _evens(d_model: int) -> Tensor:
    return torch.arange(0, d_model, 2).float()


def _table(steps, note, length, d_model):
    places = steps.places(length).float().unsqueeze(1)
    sine = note("the angles of the sines", steps.angle(places, steps.sines(d_model)))
    cosine = note("the angles of the cosines", steps.angle(places, steps.cosines(d_model)))
    return steps.join(steps.waves(sine, cosine))


_exponent = lambda d_model: _evens(d_model) / d_model

sinusoidal_with = Recipe(
    _table,
    places=torch.arange,
    sines=_exponent,
    cosines=_exponent,
    angle=lambda places, exponent: places / BASE**exponent,
    waves=lambda sine, cosine: (sine.sin(), cosine.cos()),
    join=lambda pair: torch.stack(pair, -1).flatten(-2),
)


def _grows(trials):
    """Row 1 is that of speeds that grow; further down such large angles are a matter of rounding."""
    length, d_model = trials[0].probe.args
    table, exponent = trials[0].seen.parts.get("table"), _exponent(d_model)
    if table is None or table.shape != (length, d_model):
        return False
    angle = BASE**exponent
    return close(table[1].float(), torch.stack((angle.sin(), angle.cos()), -1).flatten(), 0.01)


def _both_exponents(exponent):
    return sinusoidal_with(sines=exponent, cosines=exponent)


sinusoidal = Exercise(
    "sinusoidal",
    signature="length d_model",
    expects="a table (length, d_model) of 32-bit floats: feature 2i a sine, feature 2i + 1 the cosine of the same angle.",
    reference=sinusoidal_with,
    parts=one_tensor("table"),
    read=read.ADD_TABLE,
    probes=[
        Probe(f"{length} × {d_model}", (length, d_model), tolerance=1e-4)
        for length, d_model in ((5, 12), (6, 8), (40, 10), (8, 8), (1, 6), (3, 2))
    ],
    mistakes=[
        Mistake(
            "sin_exponent_doubled",
            "The exponent is twice as large as it should be: your even numbers are 2i already, and are doubled again.",
            _both_exponents(lambda d: 2 * _evens(d) / d),
        ),
        Mistake(
            "sin_exponent_halved",
            "The exponent is half as large as it should be: i / d_model, where the formula has 2i / d_model.",
            _both_exponents(lambda d: _evens(d) / 2 / d),
        ),
        Mistake(
            "sin_pairs_from_one",
            "You count the pairs from 1. The first pair has the exponent 0, so it turns by one radian a place.",
            _both_exponents(lambda d: (_evens(d) + 2) / d),
            _both_exponents(lambda d: (_evens(d) + 1) / d),
        ),
        Mistake(
            "sin_two_speeds_in_a_pair",
            "Sine and cosine of a pair turn at different speeds. They are the two halves of one hand: same angle for both.",
            sinusoidal_with(cosines=lambda d: (_evens(d) + 1) / d),
            sinusoidal_with(cosines=lambda d: 2 * (_evens(d) + 1) / d, sines=lambda d: 2 * _evens(d) / d),
            sinusoidal_with(cosines=lambda d: (_evens(d) + 2) / d),
        ),
        Mistake(
            "sin_two_blocks",
            "All sines stand in front and all cosines behind. Asked for is sine and cosine of a pair side by side.",
            sinusoidal_with(join=lambda pair: torch.cat(pair, -1)),
        ),
        Mistake(
            "sin_cosine_first",
            "Sine and cosine are exchanged: feature 0 is the sine, feature 1 the cosine.",
            sinusoidal_with(waves=lambda sine, cosine: (cosine.cos(), sine.sin())),
        ),
        Mistake(
            "sin_one_wave",
            "Every feature is the same kind of wave. With sines alone a product of two rows is not a matter of distance.",
            sinusoidal_with(waves=lambda sine, cosine: (sine.sin(), cosine.sin())),
            sinusoidal_with(waves=lambda sine, cosine: (sine.cos(), cosine.cos())),
        ),
        Mistake(
            "sin_places_from_one",
            "Your places start at 1. The first token stands at place 0.",
            sinusoidal_with(places=lambda n: torch.arange(1, n + 1)),
        ),
        Mistake(
            "sin_speeds_grow",
            "Your pairs turn faster and faster: the power multiplies the place, where it should divide it.",
            sinusoidal_with(angle=lambda places, exponent: places * BASE**exponent),
            Sign(_grows),
        ),
        Mistake(
            "sin_other_base",
            "The base of the power is not 10,000.",
            *(sinusoidal_with(angle=lambda places, exponent, b=b: places / b**exponent) for b in (1000.0, 100_000.0, math.e)),
        ),
        Mistake(
            "sin_other_logarithm",
            "The power is computed through a logarithm, and logarithm and exponential do not have the same base.",
            sinusoidal_with(angle=lambda places, exponent: places * torch.exp(-exponent * 4.0)),
            sinusoidal_with(angle=lambda places, exponent: places * 2.0 ** (-exponent * math.log(BASE))),
        ),
        Mistake(
            "sin_no_power",
            "The place is divided by a product, not by a power: 10,000 stands beside the exponent instead of under it.",
            sinusoidal_with(angle=lambda places, exponent: places / (BASE * exponent).clamp(min=1e-30)),
            sinusoidal_with(angle=lambda places, exponent: places / (BASE * (exponent + 1e-30))),
        ),
        Mistake(
            "sin_half_the_width",
            "Your table has one feature for each pair. A pair is two features: a sine and a cosine.",
            sinusoidal_with(join=lambda pair: pair[0]),
            sinusoidal_with(join=lambda pair: pair[0] + pair[1]),
        ),
        Mistake(
            "sin_pairs_not_joined",
            "Sine and cosine still stand on an axis of their own.",
            sinusoidal_with(join=lambda pair: torch.stack(pair, -1)),
            sinusoidal_with(join=lambda pair: torch.stack(pair, 0)),
        ),
        Mistake(
            "sin_places_as_columns",
            "Places and features are exchanged: a row of the table belongs to a place.",
            sinusoidal_with(join=lambda pair: torch.stack(pair, -1).flatten(-2).T),
        ),
        Mistake(
            "sin_batch_axis",
            "There is an axis of the batch in front. Asked for is the table alone.",
            sinusoidal_with(join=lambda pair: torch.stack(pair, -1).flatten(-2).unsqueeze(0)),
            sinusoidal_with(join=lambda pair: torch.stack(pair, -1).flatten(-2).unsqueeze(1)),
        ),
    ],
)

# -- rotary positions


def _halves(x):
    return x.chunk(2, -1)


def _neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def _side_by_side(first, second):
    return torch.cat((first, second), -1)


def _interleaved(first, second):
    return torch.stack((first, second), -1).flatten(-2)


def _angles(places, exponent):
    return places.float().unsqueeze(-1) / BASE**exponent


def _turned(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


def _rotation(steps, note, x, places):
    angle = note("the angles", steps.angle(steps.places(x, places), steps.exponent(x.size(-1))))
    first, second = steps.cut(x)
    return steps.join(*steps.turn(first, second, angle.cos(), angle.sin()))


rotate_with = Recipe(
    _rotation,
    places=lambda x, places: places,
    exponent=_exponent,
    angle=_angles,
    cut=_halves,
    turn=_turned,
    join=_side_by_side,
)


def _half_and_half(x, places, angles, swap):
    """Turn as cos * x + sin * swapped x, with the angles laid over all features by hand."""
    angle = angles(_angles(places, _exponent(x.size(-1))))
    return x * angle.cos() + swap(x) * angle.sin()


def _swap_halves(x):
    first, second = _halves(x)
    return torch.cat((-second, first), -1)


def _swap_neighbours(x):
    first, second = _neighbours(x)
    return _interleaved(-second, first)


def _twice(angle):
    return torch.cat((angle, angle), -1)


def _each_twice(angle):
    return angle.repeat_interleave(2, -1)


_X = normal(2, 3, 5, 8, seed=301)

rotate = Exercise(
    "rotate",
    signature="x positions",
    expects="x turned, of the same shape: features i and i + d_k/2 are a pair, pair i turns by position / 10,000^(2i / d_k).",
    reference=rotate_with,
    parts=one_tensor("result"),
    read=read.TURN,
    probes=[
        Probe("five tokens", (_X, torch.arange(5)), tolerance=1e-4),
        Probe("places that go on at 7", (_X, torch.arange(7, 12)), tolerance=1e-4),
        Probe("places with gaps", (normal(3, 2, 4, 6, seed=302), torch.tensor([0, 3, 4, 9])), tolerance=1e-4),
        Probe("as many tokens as heads", (normal(2, 4, 4, 12, seed=303), torch.arange(2, 6)), tolerance=1e-4),
        Probe("no axes in front", (normal(6, 10, seed=304), torch.arange(6)), tolerance=1e-4),
        Probe("one pair", (normal(2, 3, 5, 2, seed=305), torch.arange(5)), tolerance=1e-4),
        Probe("one token", (normal(2, 3, 1, 8, seed=306), torch.tensor([11])), tolerance=1e-4),
        Probe("gradients", (_X, torch.arange(7, 12)), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "rot_neighbours",
            "Your pairs are neighbours, features 2i and 2i + 1. That is the other layout; asked for are i and i + d_k/2.",
            rotate_with(cut=_neighbours, join=_interleaved),
            read=read.LAYOUTS,
        ),
        Mistake(
            "rot_layouts_mixed",
            "Two layouts are mixed: the angles are laid out for one kind of pairs, and the features are paired in the other.",
            lambda x, p: _half_and_half(x, p, _each_twice, _swap_halves),
            lambda x, p: _half_and_half(x, p, _twice, _swap_neighbours),
            read=read.LAYOUTS,
        ),
        Mistake(
            "rot_joined_otherwise",
            "The features are cut in one layout and joined in the other, so they come back in another order.",
            rotate_with(join=_interleaved),
            rotate_with(cut=_neighbours),
            read=read.LAYOUTS,
        ),
        Mistake(
            "rot_backwards",
            "You turn the other way round: the minus stands in the wrong half.",
            rotate_with(turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)),
        ),
        Mistake(
            "rot_no_minus",
            "No minus anywhere. Without it the pair is not turned, and its norm changes.",
            rotate_with(turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos + a * sin)),
        ),
        Mistake(
            "rot_both_minus",
            "There is a minus in both halves. One of them needs a plus.",
            rotate_with(turn=lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)),
        ),
        Mistake(
            "rot_uses_new_first",
            "The second half is computed from the first half as it was turned already. Both need the old features.",
            rotate_with(turn=lambda a, b, cos, sin: ((new := a * cos - b * sin), b * cos + new * sin)),
        ),
        Mistake(
            "rot_sine_and_cosine_exchanged",
            "Sine and cosine are exchanged: at place 0 your pairs are turned by a quarter.",
            rotate_with(turn=lambda a, b, cos, sin: _turned(a, b, sin, cos)),
        ),
        Mistake(
            "rot_second_half_left",
            "Only one half is turned; the other comes back as it was, or is missing.",
            rotate_with(turn=lambda a, b, cos, sin: (a * cos - b * sin, b)),
            rotate_with(turn=lambda a, b, cos, sin: (a, b * cos + a * sin)),
            rotate_with(turn=lambda a, b, cos, sin: (a * cos - b * sin, b[..., :0])),
        ),
        Mistake(
            "rot_only_scaled",
            "Each feature is multiplied by its own number. Turning mixes the two features of a pair.",
            rotate_with(turn=lambda a, b, cos, sin: (a * cos, b * cos)),
            rotate_with(turn=lambda a, b, cos, sin: (a * cos, b * sin)),
        ),
        Mistake(
            "rot_added",
            "You add sines and cosines to x. That is the table of 2017; rotary positions turn the features.",
            rotate_with(turn=lambda a, b, cos, sin: (a + sin, b + cos)),
            rotate_with(turn=lambda a, b, cos, sin: (a + cos, b + sin)),
            lambda x, p: x + torch.stack(((angle := _angles(p, _exponent(x.size(-1)))).sin(), angle.cos()), -1).flatten(-2),
        ),
        Mistake(
            "rot_counts_heads",
            "You count along axis 1, the heads. All tokens of a head are turned alike, which no score notices.",
            rotate_with(places=lambda x, p: torch.arange(x.size(1)).unsqueeze(-1) if x.dim() == 4 else p),
            rotate_with(places=lambda x, p: torch.arange(x.size(-3)).unsqueeze(-1) if x.dim() > 2 else p),
        ),
        Mistake(
            "rot_positions_on_heads",
            "The given positions meet axis 1, the heads, and not the tokens.",
            rotate_with(angle=lambda p, e: _angles(p, e).unsqueeze(-2)),
        ),
        Mistake(
            "rot_counts_from_zero",
            "You count from 0 and do not use the positions that are given. Tokens that follow others start elsewhere.",
            rotate_with(places=lambda x, p: torch.arange(x.size(-2))),
            read=read.GO_ON,
        ),
        Mistake(
            "rot_one_too_far",
            "Every position is off by one.",
            rotate_with(places=lambda x, p: p + 1),
            rotate_with(places=lambda x, p: p - 1),
        ),
        Mistake(
            "rot_exponent_doubled",
            "The exponent is twice as large as it should be: your even numbers are 2i already, and are doubled again.",
            rotate_with(exponent=lambda d: 2 * _evens(d) / d),
        ),
        Mistake(
            "rot_exponent_halved",
            "The exponent is half as large as it should be: i / d_k, where the formula has 2i / d_k.",
            rotate_with(exponent=lambda d: _evens(d) / 2 / d),
        ),
        Mistake(
            "rot_speeds_grow",
            "Your pairs turn faster and faster: the power multiplies the position, where it should divide it.",
            rotate_with(angle=lambda p, e: p.float().unsqueeze(-1) * BASE**e),
        ),
        Mistake(
            "rot_one_speed",
            "All pairs turn at the same speed: the exponent is missing.",
            rotate_with(angle=lambda p, e: p.float().unsqueeze(-1) * torch.ones_like(e)),
            rotate_with(angle=lambda p, e: p.float().unsqueeze(-1) / BASE * torch.ones_like(e)),
        ),
        Mistake(
            "rot_other_base",
            "The base of the power is not 10,000.",
            *(rotate_with(angle=lambda p, e, b=b: p.float().unsqueeze(-1) / b**e) for b in (1000.0, 500_000.0, 100_000.0)),
        ),
        Mistake(
            "rot_changes_its_input",
            "Your code writes into x itself. The caller still needs it.",
            Sign(lambda trials: any("x" in t.seen.changed for t in trials)),
        ),
    ],
)

# -- scores that know the distance


def _relative(steps, note, query, key, num_heads):
    q, k = steps.prepare(query, query, key, num_heads), steps.prepare(key, query, key, num_heads)
    q = note("the turned queries", steps.turn_query(q, steps.query_places(query.size(1), key.size(1))))
    k = note("the turned keys", steps.turn_key(k, steps.key_places(query.size(1), key.size(1))))
    return steps.give(steps.scale(steps.dot(q, k), q.size(-1), query.size(-1)))


relative_with = Recipe(
    _relative,
    prepare=lambda x, query, key, num_heads: split_heads(x, num_heads),
    query_places=lambda new, all_: torch.arange(all_ - new, all_),
    key_places=lambda new, all_: torch.arange(all_),
    turn_query=positions.rotate,
    turn_key=positions.rotate,
    dot=lambda q, k: q @ k.transpose(-2, -1),
    scale=lambda scores, d_k, d_model: scores / d_k**0.5,
    give=lambda scores: scores,
)


def _left(x, places):
    return x


def _turned_before_the_split(query, key, num_heads):
    places = torch.arange(key.size(1))
    q, k = positions.rotate(query, places[-query.size(1) :]), positions.rotate(key, places)
    q, k = split_heads(q, num_heads), split_heads(k, num_heads)
    return q @ k.transpose(-2, -1) / q.size(-1) ** 0.5


relative_scores = Exercise(
    "relative_scores",
    signature="query key num_heads",
    expects="scores (B, h, T_q, T_k), divided by the root of d_k; the queries are the last T_q of the T_k tokens.",
    reference=relative_with,
    parts=one_tensor("scores"),
    read=read.WHO_TURNS,
    probes=[
        Probe("as many queries as keys", (normal(2, 5, 12, seed=311), normal(2, 5, 12, seed=312), 3), tolerance=1e-4),
        Probe("the last two of seven tokens", (normal(3, 2, 16, seed=313), normal(3, 7, 16, seed=314), 4), tolerance=1e-4),
        Probe("one query", (normal(2, 1, 24, seed=315), normal(2, 6, 24, seed=316), 4), tolerance=1e-4),
        Probe("as many sentences as heads", (normal(3, 4, 18, seed=317), normal(3, 5, 18, seed=318), 3), tolerance=1e-4),
        Probe("gradients", (normal(2, 2, 12, seed=319), normal(2, 5, 12, seed=320), 3), gradient=True, tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "rel_turned_before_the_split",
            "You turn before the heads are split. Then the partner of a feature lies in another head, and the speeds are not those of a head.",
            _turned_before_the_split,
        ),
        Mistake(
            "rel_queries_from_zero",
            "Your queries are counted from 0. They are the last of the tokens: their places go on where the earlier ones end.",
            relative_with(query_places=lambda new, all_: torch.arange(new)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_queries_after_the_keys",
            "Your queries stand behind all the keys. The last query is the last key's own token.",
            relative_with(query_places=lambda new, all_: torch.arange(all_, all_ + new)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_off_by_one",
            "The places of the queries are off by one against those of the keys.",
            relative_with(query_places=lambda new, all_: torch.arange(all_ - new, all_) + 1),
            relative_with(query_places=lambda new, all_: torch.arange(all_ - new, all_) - 1 + (new == all_)),
            relative_with(key_places=lambda new, all_: torch.arange(1, all_ + 1)),
            read=read.GO_ON,
        ),
        Mistake(
            "rel_query_not_turned",
            "Only the keys are turned. Then a score depends on the place of the key, and not on the distance.",
            relative_with(turn_query=_left),
        ),
        Mistake(
            "rel_key_not_turned",
            "Only the queries are turned. Then a score depends on the place of the query, and not on the distance.",
            relative_with(turn_key=_left),
        ),
        Mistake(
            "rel_not_turned",
            "These scores know no places: nothing is turned, or all tokens of a head are turned alike, as when heads are counted.",
            relative_with(turn_query=_left, turn_key=_left),
        ),
        Mistake(
            "rel_turned_twice",
            "Keys or queries are turned twice: a token's angle is twice what its place says.",
            relative_with(turn_key=lambda x, p: positions.rotate(positions.rotate(x, p), p)),
            relative_with(turn_query=lambda x, p: positions.rotate(positions.rotate(x, p), p)),
            relative_with(
                turn_key=lambda x, p: positions.rotate(x, 2 * p), turn_query=lambda x, p: positions.rotate(x, 2 * p)
            ),
        ),
        Mistake(
            "rel_opposite_turns",
            "Queries and keys are turned in opposite directions: the angles add up, where their difference should be left.",
            relative_with(turn_key=lambda x, p: _turn_back(x, p)),
        ),
        Mistake(
            "rel_split_by_view",
            "The heads cut the sequence instead of the features, so a head does not hold all tokens.",
            relative_with(prepare=lambda x, q, k, h: x.reshape(x.size(0), h, x.size(1), -1)),
            read=read.CUT,
        ),
        Mistake(
            "rel_not_divided",
            "The scores are not divided by the root of d_k.",
            relative_with(scale=lambda s, d_k, d_model: s),
            read=read.SCALE,
        ),
        Mistake(
            "rel_divided_otherwise",
            "The scores are divided by another number than the root of d_k, the width of a head.",
            relative_with(scale=lambda s, d_k, d_model: s / d_model**0.5),
            relative_with(scale=lambda s, d_k, d_model: s / d_k),
            relative_with(scale=lambda s, d_k, d_model: s * d_k**0.5),
            read=read.SCALE,
        ),
        Mistake(
            "rel_weights",
            "You return weights: each row went through a softmax. Asked for are the scores.",
            relative_with(give=lambda s: s.softmax(-1)),
        ),
        Mistake(
            "rel_transposed",
            "Queries and keys are exchanged: a row of the scores belongs to a query.",
            relative_with(give=lambda s: s.transpose(-2, -1)),
        ),
        Mistake(
            "rel_other_layout",
            "The heads are turned in the other layout, by neighbours. The scores of a trained layer would be others.",
            relative_with(turn_query=rotate_with(cut=_neighbours, join=_interleaved), turn_key=rotate_with(cut=_neighbours, join=_interleaved)),
            read=read.LAYOUTS,
        ),
    ],
)


def _turn_back(x, places):
    return rotate_with(turn=lambda a, b, cos, sin: _turned(a, b, cos, -sin))(x, places)


# -- weights from one layout to the other


def _rows_moved(steps, note, weight, num_heads):
    heads = steps.heads(weight, num_heads)  # (h, d_k, d_in)
    return steps.back(steps.order(heads), weight)


swap_with = Recipe(
    _rows_moved,
    heads=lambda weight, num_heads: weight.unflatten(0, (num_heads, -1)),
    order=lambda heads: torch.cat((heads[:, 0::2], heads[:, 1::2]), 1),
    back=lambda heads, weight: heads.flatten(0, 1),
)


def _first_head_only(weight, num_heads):
    d_k = weight.size(0) // num_heads
    return torch.cat((weight[:d_k][0::2], weight[:d_k][1::2], weight[d_k:]))


swap_layout = Exercise(
    "swap_layout",
    signature="weight num_heads",
    expects="a weight of the same shape: in each head first the rows 0, 2, 4, … and then 1, 3, 5, ….",
    reference=swap_with(),
    parts=one_tensor("weight"),
    read=read.LAYOUTS,
    probes=[
        Probe("three heads of 8", (numbered(24, 10), 3), cells=True),
        Probe("two heads of 6", (numbered(12, 7), 2), cells=True),
        Probe("as many columns as rows", (numbered(16, 16), 2), cells=True),
        Probe("one head", (numbered(10, 3), 1), cells=True),
        Probe("heads of 4", (numbered(20, 6), 5), cells=True),
        Probe("one pair in each head", (numbered(6, 5), 3), cells=True),
    ],
    mistakes=[
        Mistake(
            "swap_other_way",
            "This is the way back, from halves to neighbours.",
            swap_with(order=lambda heads: torch.stack(heads.chunk(2, 1), 2).flatten(1, 2)),
        ),
        Mistake(
            "swap_over_the_width",
            "You put the rows of the whole width in order. Pairs live inside a head, so each head has its own order.",
            lambda weight, num_heads: torch.cat((weight[0::2], weight[1::2])),
        ),
        Mistake(
            "swap_over_the_width_and_back",
            "You take the way back, from halves to neighbours, and over the whole width; pairs live inside a head.",
            lambda weight, num_heads: torch.stack(weight.chunk(2), 1).flatten(0, 1),
        ),
        Mistake(
            "swap_columns",
            "You move columns. They belong to the features that come in; the features of the heads are the rows.",
            lambda weight, num_heads: _of_columns(weight, num_heads),
            lambda weight, num_heads: torch.cat((weight[:, 0::2], weight[:, 1::2]), 1),
        ),
        Mistake("swap_nothing", "The weight comes back as it was.", lambda weight, num_heads: weight.clone()),
        Mistake(
            "swap_heads_and_features",
            "Heads and features are exchanged: the rows of a head stand together, head after head.",
            swap_with(
                heads=lambda weight, h: weight.unflatten(0, (-1, h)).transpose(0, 1),
                back=lambda heads, weight: heads.transpose(0, 1).flatten(0, 1),
            ),
            swap_with(heads=lambda weight, h: weight.unflatten(0, (-1, h))),
            swap_with(
                heads=lambda weight, h: weight.unflatten(0, (-1, h)).transpose(0, 1), back=lambda heads, weight: heads.flatten(0, 1)
            ),
        ),
        Mistake(
            "swap_halves_exchanged",
            "The two halves of each head are exchanged; nothing is sorted.",
            swap_with(order=lambda heads: torch.cat(heads.chunk(2, 1)[::-1], 1)),
        ),
        Mistake(
            "swap_odd_first",
            "The odd rows stand first. The first feature of a pair belongs into the first half.",
            swap_with(order=lambda heads: torch.cat((heads[:, 1::2], heads[:, 0::2]), 1)),
        ),
        Mistake(
            "swap_neighbours_exchanged",
            "The two features of each pair are exchanged and stay neighbours.",
            swap_with(order=lambda heads: torch.stack((heads[:, 1::2], heads[:, 0::2]), 2).flatten(1, 2)),
        ),
        Mistake("swap_first_head_only", "Only the first head is put in order; the others are as they were.", _first_head_only),
        Mistake(
            "swap_one_order_for_all",
            "Every head gets the rows of the first one: the order of its rows is not moved on from head to head.",
            swap_with(heads=lambda weight, h: (w := weight.unflatten(0, (h, -1)))[:1].expand_as(w)),
        ),
        Mistake(
            "swap_heads_not_joined",
            "The heads still stand on an axis of their own.",
            swap_with(back=lambda heads, weight: heads),
        ),
        Mistake(
            "swap_transposed",
            "Rows and columns are exchanged in what you return.",
            swap_with(back=lambda heads, weight: heads.flatten(0, 1).T),
        ),
        Mistake(
            "swap_changes_its_input",
            "Your code writes into the weight that is given.",
            Sign(lambda trials: any("weight" in t.seen.changed for t in trials)),
        ),
    ],
)


def _of_columns(weight, num_heads):
    return swap_with()(weight.T, num_heads).T


# -- a planted bug


def _right_attention(query, key, value):
    places = torch.arange(key.size(-2))
    return attention(positions.rotate(query, places), positions.rotate(key, places), value)[0]


bug_positions = BugHunt(
    "bug_positions",
    signature="query key value",
    expects="the arguments (query, key, value), each (B, T, d_k) with an even d_k, of a call on which the output is wrong.",
    reference=_right_attention,
    buggy=planted.attention_turned,
    read=read.WHO_TURNS,
    lucky=(
        Lucky(
            "hidden_by_one_token",
            "A single token stands at place 0, and there nothing is turned.",
            lambda query, key, value: key.size(-2) == 1,
        ),
        Lucky("hidden_by_zeros", "All values are 0, and 0 turned is 0.", lambda query, key, value: not bool(value.any())),
        Lucky(
            "hidden_by_the_first_place",
            "Only the value of the first token counts here, and place 0 is not turned.",
            lambda query, key, value: not bool(value[..., 1:, :].any()) or _first_takes_all(query, key, value),
        ),
    ),
)


def _first_takes_all(query, key, value):
    places = torch.arange(key.size(-2))
    weights = attention(positions.rotate(query, places), positions.rotate(key, places), value)[1]
    return float(weights[..., 1:].max()) < 1e-4
