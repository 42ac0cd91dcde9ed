"""The known mistakes in turning pairs of features by their position."""

import math

import torch
from torch import Tensor

from mha_lib.checks import read
from mha_lib.checks.case import Mistake, Sign
from mha_lib.checks.compare import close
from mha_lib.checks.recipe import Recipe

BASE = 10_000.0


def evens(d_model: int) -> Tensor:
    return torch.arange(0, d_model, 2).float()


exponents = lambda d_model: evens(d_model) / d_model


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
    exponent=exponents,
    angle=_angles,
    cut=_halves,
    turn=turned,
    join=side_by_side,
)


def _half_and_half(x, places, angles, swap):
    """Turn as cos * x + sin * swapped x, with the angles laid over all features by hand."""
    angle = angles(_angles(places, exponents(x.size(-1))))
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


ROTATE = (
    Mistake(
        "rot_neighbours",
        "Your pairs are neighbours, features 2i and 2i + 1. That is the other layout; asked for are i and i + d_k/2.",
        rotate_with(cut=neighbours, join=interleaved),
        read=read.LAYOUTS,
    ),
    Mistake(
        "rot_layouts_mixed",
        "Two layouts are mixed: the angles are laid out for one kind of pairs, and the features are paired in the "
        "other.",
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
        lambda x, p: x + torch.stack(((angle := _angles(p, exponents(x.size(-1)))).sin(), angle.cos()), -1).flatten(-2),
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
        rotate_with(exponent=lambda d: 2 * evens(d) / d),
    ),
    Mistake(
        "rot_exponent_halved",
        "The exponent is half as large as it should be: i / d_k, where the formula has 2i / d_k.",
        rotate_with(exponent=lambda d: evens(d) / 2 / d),
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
        "Both halves are turned, and stand in each other's places. The first half of the features belongs in front.",
        rotate_with(join=lambda a, b: side_by_side(b, a)),
    ),
    Mistake(
        "rot_halves_off_by_one",
        "One of your halves begins or ends one feature beside the middle: some feature is in both, and another in "
        "none.",
        rotate_with(cut=lambda x: (_halves(x)[0], x[..., x.size(-1) // 2 - 1 : -1])),
        rotate_with(cut=lambda x: (x[..., 1 : x.size(-1) // 2 + 1], _halves(x)[1])),
        read=read.LAYOUTS,
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
)
