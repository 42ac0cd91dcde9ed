"""The checks of chapter 9, first part: positions added, and positions turned."""

import math

import torch
from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Probe, Sign
from mha_lib.checks.compare import close, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal
from mha_lib.checks.recipe import Recipe

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


def _pairs_of_a_hand(trials):
    """Every pair is a sine and a cosine of one angle, and some angles are others than asked for."""
    tables = [(t.seen.parts.get("table"), t.want.parts["table"]) for t in trials]
    if any(x is None or x.shape != want.shape for x, want in tables) or all(close(x, want, 1e-4) for x, want in tables):
        return False
    told = [x.double().unflatten(-1, (-1, 2)).square().sum(-1) for x, want in tables if not x.isnan().any()]
    return len(told) > 2 and all(close(x, torch.ones_like(x), 1e-3) for x in told)


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
            "sin_power_of_the_base_alone",
            "Only the base is raised to a power, and what should be the exponent is multiplied: brackets are missing around 2i / d_model.",
            sinusoidal_with(angle=lambda places, exponent: torch.where(exponent == 0, places, places / (BASE**2 * exponent / 2))),
            sinusoidal_with(angle=lambda places, exponent: places / (BASE**2 * exponent / 2).clamp(min=1e-30)),
        ),
        Mistake(
            "sin_other_divisor",
            "Your exponent is divided by another number than d_model.",
            _both_exponents(lambda d: _evens(d) * (1 / (d - 2))),
            _both_exponents(lambda d: _evens(d) / (d - 2)),
            _both_exponents(lambda d: _evens(d) / (d - 1)),
        ),
        Mistake(
            "sin_full_circles",
            "The angle is multiplied by 2π. The formula counts in radians: the first pair turns by one radian a place.",
            sinusoidal_with(angle=lambda places, exponent: 2 * math.pi * places / BASE**exponent),
        ),
        Mistake(
            "sin_degrees",
            "The angle is turned into degrees, or out of them. The formula counts in radians, as sin and cos do.",
            sinusoidal_with(angle=lambda places, exponent: torch.deg2rad(places / BASE**exponent)),
            sinusoidal_with(angle=lambda places, exponent: torch.rad2deg(places / BASE**exponent)),
        ),
        Mistake(
            "sin_whole_angles",
            "The division drops the fraction, so that slow pairs stand still. An angle is any number, not a whole one.",
            sinusoidal_with(angle=lambda places, exponent: places // BASE**exponent),
        ),
        Mistake(
            "sin_other_angles",
            "Each pair is a sine and a cosine of one angle, but of another than place / 10,000^(2i / d_model). Look at the exponent first.",
            Sign(_pairs_of_a_hand),
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


def neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def side_by_side(first, second):
    return torch.cat((first, second), -1)


def interleaved(first, second):
    return torch.stack((first, second), -1).flatten(-2)


def _angles(places, exponent):
    return places.float().unsqueeze(-1) / BASE**exponent


def turned(first, second, cos, sin):
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
    turn=turned,
    join=side_by_side,
)


def _half_and_half(x, places, angles, swap):
    """Turn as cos * x + sin * swapped x, with the angles laid over all features by hand."""
    angle = angles(_angles(places, _exponent(x.size(-1))))
    return x * angle.cos() + swap(x) * angle.sin()


def _swap_halves(x):
    first, second = _halves(x)
    return torch.cat((-second, first), -1)


def _swap_neighbours(x):
    first, second = neighbours(x)
    return interleaved(-second, first)


def _twice(angle):
    return torch.cat((angle, angle), -1)


def _turned_by_other_angles(trials):
    """Every pair keeps its norm, and at place 0 all stay as they are."""
    told = [t for t in trials if not t.probe.gradient]
    if any(t.seen.error is not None or t.seen.parts["result"].shape != t.probe.args[0].shape for t in told):
        return False
    given = [(t.seen.parts["result"].detach(), t.probe.args[0], t.want.parts["result"]) for t in told]
    if all(close(got, want, 1e-4) for got, _, want in given):
        return False
    norms = [[torch.stack(x.double().chunk(2, -1)).norm(dim=0) for x in (got, before)] for got, before, _ in given]
    return all(close(*both, 1e-3) for both in norms) and close(given[0][0][..., 0, :], given[0][1][..., 0, :], 1e-4)


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
            rotate_with(cut=neighbours, join=interleaved),
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
            rotate_with(join=interleaved),
            rotate_with(cut=neighbours),
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
            rotate_with(turn=lambda a, b, cos, sin: turned(a, b, sin, cos)),
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
            "rot_degrees",
            "The angle is turned into degrees, or out of them. The formula counts in radians, as sin and cos do.",
            rotate_with(angle=lambda p, e: torch.deg2rad(_angles(p, e))),
            rotate_with(angle=lambda p, e: torch.rad2deg(_angles(p, e))),
        ),
        Mistake(
            "rot_full_circles",
            "The angle is multiplied by 2π. The formula counts in radians: the first pair turns by one radian a place.",
            rotate_with(angle=lambda p, e: 2 * math.pi * _angles(p, e)),
        ),
        Mistake(
            "rot_halves_exchanged",
            "Both halves are turned and stand in each other's places: the first half of the features comes first again.",
            rotate_with(join=lambda a, b: side_by_side(b, a)),
        ),
        Mistake(
            "rot_joined_on_another_axis",
            "The two halves are right, and are joined along another axis than that of the features.",
            rotate_with(join=lambda a, b: torch.cat((a, b))),
            rotate_with(join=lambda a, b: torch.cat((a, b), 1)),
            rotate_with(join=lambda a, b: torch.cat((a, b), -2)),
            rotate_with(join=lambda a, b: torch.stack((a, b))),
            rotate_with(join=lambda a, b: torch.stack((a, b), -1)),
            rotate_with(join=lambda a, b: torch.stack((a, b), -2)),
        ),
        Mistake(
            "rot_other_angles",
            "Every pair is turned, but by another angle than position / 10,000^(2i / d_k). Look at the exponent first.",
            Sign(_turned_by_other_angles),
        ),
        Mistake(
            "rot_changes_its_input",
            "Your code writes into x itself. The caller still needs it.",
            Sign(lambda trials: any("x" in t.seen.changed for t in trials)),
        ),
    ],
)
