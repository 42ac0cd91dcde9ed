"""The checks of chapter 9, first part: positions added, and positions turned."""

import math

import torch

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Probe, Sign
from mha_lib.checks.compare import close, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.inputs import normal
from mha_lib.checks.mistakes.rotary import BASE, ROTATE, evens, exponents, rotate_with
from mha_lib.checks.recipe import Recipe

# -- the sinusoidal table


def _table(steps, note, length, d_model):
    places = steps.places(length).float().unsqueeze(1)
    sine = note("the angles of the sines", steps.angle(places, steps.sines(d_model)))
    cosine = note("the angles of the cosines", steps.angle(places, steps.cosines(d_model)))
    return steps.join(steps.waves(sine, cosine))


sinusoidal_with = Recipe(
    _table,
    places=torch.arange,
    sines=exponents,
    cosines=exponents,
    angle=lambda places, exponent: places / BASE**exponent,
    waves=lambda sine, cosine: (sine.sin(), cosine.cos()),
    join=lambda pair: torch.stack(pair, -1).flatten(-2),
)


def _grows(trials):
    """Row 1 is that of speeds that grow; further down such large angles are a matter of rounding."""
    length, d_model = trials[0].probe.args
    table, exponent = trials[0].seen.parts.get("table"), exponents(d_model)
    if table is None or table.shape != (length, d_model):
        return False
    angle = BASE**exponent
    return close(table[1].float(), torch.stack((angle.sin(), angle.cos()), -1).flatten(), 0.01)


def _pairs_of_a_hand(trials):
    """Every pair is a sine and a cosine of one angle, and some angles are others than asked for."""
    tables = [(t.seen.parts.get("table"), t.want.parts["table"]) for t in trials]
    if any(x is None or x.shape != want.shape for x, want in tables) or all(
        close(x, want, 1e-4) for x, want in tables
    ):
        return False
    told = [x.double().unflatten(-1, (-1, 2)).square().sum(-1) for x, want in tables if not x.isnan().any()]
    return len(told) > 2 and all(close(x, torch.ones_like(x), 1e-3) for x in told)


def _both_exponents(exponent):
    return sinusoidal_with(sines=exponent, cosines=exponent)


sinusoidal = Exercise(
    "sinusoidal",
    signature="length d_model",
    expects="a table (length, d_model) of 32-bit floats: feature 2i a sine, feature 2i + 1 the cosine of the same "
    "angle.",
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
            _both_exponents(lambda d: 2 * evens(d) / d),
        ),
        Mistake(
            "sin_exponent_halved",
            "The exponent is half as large as it should be: i / d_model, where the formula has 2i / d_model.",
            _both_exponents(lambda d: evens(d) / 2 / d),
        ),
        Mistake(
            "sin_pairs_from_one",
            "You count the pairs from 1. The first pair has the exponent 0, so it turns by one radian a place.",
            _both_exponents(lambda d: (evens(d) + 2) / d),
            _both_exponents(lambda d: (evens(d) + 1) / d),
        ),
        Mistake(
            "sin_two_speeds_in_a_pair",
            "Sine and cosine of a pair turn at different speeds. They are the two halves of one hand: same angle for "
            "both.",
            sinusoidal_with(cosines=lambda d: (evens(d) + 1) / d),
            sinusoidal_with(cosines=lambda d: 2 * (evens(d) + 1) / d, sines=lambda d: 2 * evens(d) / d),
            sinusoidal_with(cosines=lambda d: (evens(d) + 2) / d),
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
            "Every feature is the same kind of wave. With sines alone a product of two rows is not a matter of "
            "distance.",
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
            *(
                sinusoidal_with(angle=lambda places, exponent, b=b: places / b**exponent)
                for b in (1000.0, 100_000.0, math.e)
            ),
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
            "Only the base is raised to a power, and what should be the exponent is multiplied: brackets are missing "
            "around 2i / d_model.",
            sinusoidal_with(
                angle=lambda places, exponent: torch.where(exponent == 0, places, places / (BASE**2 * exponent / 2))
            ),
            sinusoidal_with(angle=lambda places, exponent: places / (BASE**2 * exponent / 2).clamp(min=1e-30)),
        ),
        Mistake(
            "sin_other_divisor",
            "Your exponent is divided by another number than d_model.",
            _both_exponents(lambda d: evens(d) * (1 / (d - 2))),
            _both_exponents(lambda d: evens(d) / (d - 2)),
            _both_exponents(lambda d: evens(d) / (d - 1)),
        ),
        Mistake(
            "sin_full_circles",
            "The angle is multiplied by 2π. The formula counts in radians: the first pair turns by one radian a "
            "place.",
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
            "Each pair is a sine and a cosine of one angle, but of another than place / 10,000^(2i / d_model). Look "
            "at the exponent first.",
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


_X = normal(2, 3, 5, 8, seed=301)

rotate = Exercise(
    "rotate",
    signature="x positions",
    expects="x turned, of the same shape: features i and i + d_k/2 are a pair, pair i turns by position / 10,000^(2i "
    "/ d_k).",
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
    mistakes=ROTATE,
)
