"""How a wrong result is related to the right one: turned, multiplied, moved, or wrong in some places only."""

import itertools
import math

import torch
from torch import Tensor

from mha_lib.checks.compare import Trial, are, close, largest_difference
from mha_lib.checks.words import apart, listed

Relation = tuple[str, str]  # an id, and a sentence


def relation(trials: list[Trial], names: list[str]) -> Relation | None:
    """Return what holds between the wrong results and the right ones on every input that shows the mistake.

    names: those of the arguments, by which a factor may be named.
    """
    wrong = [t for t in trials if t.is_wrong and t.seen.error is None and t.want.error is None and not t.probe.gradient]
    if not wrong or len(wrong) < sum(t.is_wrong and not t.probe.gradient for t in trials):
        return None
    firsts = [largest_difference(t.seen.parts, t.want.parts, t.probe.tolerance) for t in wrong]
    if any(d is None or d.got is None or d.part != firsts[0].part for d in firsts):
        return None
    part = firsts[0].part
    pairs = [(t.seen.parts[part].detach(), t.want.parts[part].detach()) for t in wrong]
    if isinstance(firsts[0].got, torch.dtype):
        return (
            "wrong_dtype",
            f"The numbers of the {part} may be right, but {_they(part)} stored as {firsts[0].got}, not as "
            f"{firsts[0].want}.",
        )
    factors = _by_arguments(part, pairs, wrong, names)
    if factors is not None:
        return factors
    for look in (_constant, _input_returned, _reshaped, _rounded, _times, _moved, _in_places):
        found = look(part, pairs, wrong)
        if found is not None:
            return found
    return None


def _they(part: str) -> str:
    return "they are" if are(part) == "are" else "it is"


def _constant(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    if any(g.numel() < 2 or g.isnan().any() or float(g.double().min()) != float(g.double().max()) for g, _ in pairs):
        return None
    value = {0.0: "False", 1.0: "True"}.get(float(pairs[0][0].flatten()[0])) if part == "mask" else None
    return (
        "all_alike",
        f"Your {part} {'hold' if are(part) == 'are' else 'holds'} the same everywhere: "
        f"{value or apart(float(pairs[0][0].flatten()[0]))[0]}.",
    )


def _input_returned(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    for i, given in enumerate(wrong[0].probe.args):
        if isinstance(given, Tensor) and all(
            isinstance(t.probe.args[i], Tensor) and t.probe.args[i].shape == g.shape and close(g, t.probe.args[i], 1e-6)
            for t, (g, _) in zip(wrong, pairs)
        ):
            return "input_returned", f"The {part} {are(part)} one of the inputs, unchanged."
    return None


def _reshaped(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    if all(g.shape == w.shape for g, w in pairs):
        return None
    if all(g.squeeze().shape == w.squeeze().shape and close(g.squeeze(), w.squeeze(), 1e-5) for g, w in pairs):
        more = next((g.dim() - w.dim() for g, w in pairs if g.dim() != w.dim()), 0)
        what = (
            "Axes of size 1 are gone"
            if more < 0
            else "There is an axis of size 1 too many"
            if more
            else "An axis of size 1 stands in another place"
        )
        return (
            "axes_of_size_one",
            f"{what}: the numbers are right, the shape is {tuple(pairs[0][0].shape)} instead of "
            f"{tuple(pairs[0][1].shape)}.",
        )
    shared = _shared_axes(pairs)
    for axis, along in itertools.product([*shared, *range(len(shared))], shared):
        if all(g.dim() == w.dim() and _is_joined_along(g, w, axis, along) for g, w in pairs):
            got, right = (axis_words(part, i, pairs[0][1].dim()) for i in (axis, along))
            return (
                "joined_on_wrong_axis",
                f"The pieces are right and joined along {got}. They belong side by side along {right}.",
            )
    for axis in _shared_axes(pairs):
        if all(g.dim() == w.dim() and _is_slice(g, w, axis) for g, w in pairs):
            some, whole = pairs[0][0].size(axis), pairs[0][1].size(axis)
            return (
                "part_only",
                f"You return a part of what is asked for: along {axis_words(part, axis, pairs[0][1].dim())}, the "
                f"first {some} of {whole}.",
            )
    return None


def _shared_axes(pairs: list) -> list[int]:
    """Return the axes that the results on all inputs have, counted from the end."""
    return [-1 - i for i in range(min(w.dim() for _, w in pairs))]


def _is_joined_along(g: Tensor, w: Tensor, axis: int, along: int) -> bool:
    """Say whether g holds the pieces that w is cut into along one axis, joined along another."""
    if (
        axis % w.dim() == along % w.dim()
        or g.size(axis) <= w.size(axis)
        or g.size(axis) % w.size(axis)
        or w.size(along) % (count := g.size(axis) // w.size(axis))
    ):
        return False
    joined = torch.cat(w.chunk(count, along), axis)
    return joined.shape == g.shape and close(g, joined, 1e-5)


def _is_slice(g: Tensor, w: Tensor, axis: int) -> bool:
    if g.size(axis) > w.size(axis):
        return False
    cut = w.narrow(axis, 0, g.size(axis))
    return cut.shape == g.shape and close(g, cut, 1e-5)


def _times(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    """Find one factor, or one number added, that turns the right result into the wrong one."""
    factors, offsets = [], []
    for g, w in pairs:
        if g.shape != w.shape or not w.isfinite().all() or not g.isfinite().all() or part == "mask":
            return None
        g, w = g.double(), w.double()
        factor = float((g * w).sum() / (w * w).sum()) if float((w * w).sum()) else 0.0
        factors.append(factor if factor and close(g, factor * w, 1e-4) else None)
        offset = float((g - w).mean())
        offsets.append(offset if close(g, w + offset, 1e-4) else None)
    if None not in factors:
        if all(abs(f + 1) < 1e-4 for f in factors):
            return "negated", f"The {part} {are(part)} exactly the negative of what is expected."
        if abs(factors[0] - 1) < 1e-3 or pairs[0][0].numel() == 1:
            return None
        if max(factors) - min(factors) < 1e-3 * abs(factors[0]):
            return (
                "constant_multiple",
                f"The {part} {are(part)} what is expected times {apart(factors[0])[0]}, everywhere.",
            )
        some = listed(list(dict.fromkeys(apart(f)[0] for f in factors))[:3], "or")
        return "multiple", f"The {part} {are(part)} what is expected times a number that depends on the input: {some}."
    if None not in offsets and pairs[0][0].numel() > 1:
        return "constant_offset", f"The {part} {are(part)} what is expected plus {apart(offsets[0])[0]}, everywhere."
    return None


def _by_arguments(part: str, pairs: list, wrong: list[Trial], names: list[str]) -> Relation | None:
    """Find the arguments by which a result that is one number is too large or too small on every input."""
    if len(wrong) < 2 or any(g.numel() != 1 or w.numel() != 1 or not float(g) or not float(w) for g, w in pairs):
        return None
    counts = {
        n: [float(t.probe.args[i]) for t in wrong]
        for i, n in enumerate(names)
        if _is_a_count([t.probe.args[i] for t in wrong])
    }
    factors = [float(g) / float(w) for g, w in pairs]
    powers = sorted(itertools.product((0, 1, -1, 2, -2), repeat=len(counts)), key=lambda p: sum(map(abs, p)))
    for power in powers if len(counts) < 8 else ():
        if not 0 < sum(map(abs, power)) < 5:
            continue
        rests = [f / math.prod(c[i] ** e for c, e in zip(counts.values(), power)) for i, f in enumerate(factors)]
        for constant in (1.0, 2.0, 0.5, 4.0, 0.25, 8.0):
            if all(abs(rest / constant - 1) < 1e-6 for rest in rests):
                terms = (
                    [(str(constant if constant > 1 else 1 / constant)[:-2], 1 if constant > 1 else -1)]
                    if constant != 1
                    else []
                )
                terms += [(n, e) for n, e in zip(counts, power) if e]
                up, down = (" · ".join(n for n, e in terms for _ in range(max(sign * e, 0))) for sign in (1, -1))
                how = f"times {up}" + (f", divided by {down}" if down else "") if up else f"divided by {down}"
                return "wrong_factor", f"The {part} {are(part)} what is expected {how}, on every input that shows it."
    return None


def _is_a_count(values: list) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values) and len(set(values)) > 1


def _rounded(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    if any(g.shape != w.shape or not g.is_floating_point() for g, w in pairs):
        return None
    for places in range(1, 6):
        if all(close(g, (w.double() * 10**places).round() / 10**places, 1e-6) for g, w in pairs):
            off = max(float((g.double() - w.double()).abs().max()) for g, w in pairs)
            return (
                "rounded",
                f"Your numbers are rounded to {places} decimals: off by up to {off:.0e}. Give them as they come.",
            )
    off = max(float((g.double() - w.double()).abs().max()) for g, w in pairs)
    if off < 1e-3 and max(float(w.abs().max()) for _, w in pairs) > 10 * off:
        return (
            "inexact",
            f"Your numbers are nearly right: off by up to {off:.0e}, which is more than the order of the sums "
            "explains.",
        )
    return None


def _moved(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    """Find two axes that are exchanged, or an axis whose entries stand in another order."""
    if any(w.dim() != g.dim() for g, w in pairs):
        return None
    axes = pairs[0][1].dim()
    for i, j in itertools.combinations(sorted(_shared_axes(pairs)), 2):
        turned = [(g, w.transpose(i, j)) for g, w in pairs]
        if all(g.shape == w.shape and close(g, w, 1e-5) for g, w in turned):
            return (
                "axes_exchanged",
                f"The {part} {are(part)} what is expected with axes {i + axes} and {j + axes} exchanged.",
            )
    for axis in _shared_axes(pairs):
        orders = [_order(g, w, axis) for g, w in pairs]
        if None not in orders:
            where = axis_words(part, axis, axes)
            if (
                any(_has_twins(w, axis) for _, w in pairs)
                or part == "mask"
                and any(len(set(o)) < len(o) for o in orders)
            ):
                continue
            if all(len(set(order)) == 1 for order in orders):
                return (
                    "one_for_all",
                    f"Along {where} all entries are alike: each is what belongs to number {orders[0][0]}.",
                )
            if all(len(set(order)) == len(order) for order in orders):
                how = "in reverse" if orders[0] == list(range(len(orders[0])))[::-1] else f"in the order {orders[0]}"
                return "another_order", f"Every number is right, but in another place: along {where} they stand {how}."
            return (
                "some_repeated",
                f"Along {where} some entries stand twice and others are missing: they come from {orders[0]}.",
            )
    return None


def _order(g: Tensor, w: Tensor, axis: int) -> list[int] | None:
    """Return which entry of w each entry of g along an axis is, or None if one is none of them."""
    if g.shape != w.shape or w.size(axis) < 2:
        return None
    found = []
    for piece in g.unbind(axis):
        number = next((i for i, other in enumerate(w.unbind(axis)) if close(piece, other, 1e-5)), None)
        if number is None:
            return None
        found.append(number)
    return found


def _has_twins(w: Tensor, axis: int) -> bool:
    """Say whether two entries along an axis are alike, so that nobody can tell which is which."""
    entries = w.unbind(axis)
    return any(close(a, b, 1e-5) for a, b in itertools.combinations(entries, 2))


def _in_places(part: str, pairs: list, wrong: list[Trial]) -> Relation | None:
    """Say where the result is wrong, if it is right elsewhere."""
    g, w = pairs[0]
    if g.shape != w.shape or g.dim() < 1 or g.isnan().any():
        return None
    off = (g.double() - w.double()).abs().nan_to_num(nan=1.0, posinf=1.0) > 1e-5 * (
        1 + w.double().abs().nan_to_num(posinf=0.0, neginf=0.0)
    )
    if off.all() or not off.any():
        return None
    count = int(off.sum())
    if part == "mask" and off.dim() >= 2 and off.size(-1) == off.size(-2):
        for words, where in (
            ("on the diagonal", torch.eye),
            ("above the diagonal", None),
            ("below the diagonal", None),
        ):
            square = torch.ones(off.shape[-2:], dtype=torch.bool)
            region = square.triu(1) if words[0] == "a" else square.tril(-1) if words[0] == "b" else square.triu().tril()
            if bool((off & ~region).sum() == 0):
                return (
                    "wrong_in_places",
                    f"Your {part} {are(part)} wrong {words} only: in {count} of {off.numel()} cells of the first "
                    "input that shows it.",
                )
    for axis in range(off.dim()):
        rest = [i for i in range(off.dim()) if i != axis]
        touched = off.any(dim=tuple(rest)) if rest else off
        indices = touched.nonzero().flatten().tolist()
        if len(indices) < off.size(axis):
            fine = [i for i in range(off.size(axis)) if i not in indices]
            where, few = axis_words(part, axis, off.dim()), min(indices, fine, key=len)
            numbers = listed([str(i) for i in few]) if len(few) <= 6 else f"{len(few)} of {off.size(axis)} places"
            how = "except" if few is indices else "only"
            return (
                "wrong_in_places",
                f"Your {part} {are(part)} right {how} at {numbers} along {where}: {count} of {off.numel()} cells "
                "differ.",
            )
    if count <= off.numel() // 2:
        return (
            "wrong_in_places",
            f"Your {part} {are(part)} right in most places: {count} of {off.numel()} cells differ.",
        )
    return None


def axis_words(part: str, axis: int, axes: int) -> str:
    """Name an axis of a part: its number, and what it counts."""
    axis %= axes
    last = {
        "weights": ("the queries", "the keys"),
        "scores": ("the queries", "the keys"),
        "mask": ("the queries", "the keys"),
    }
    last |= {
        "weight": ("the rows", "the columns"),
        "tokens": ("the texts", "the tokens"),
        "log_sum_exp": ("the sentences", "the queries"),
    }
    counts = last.get(part, ("the tokens", "the features"))
    back = axis - axes
    if back >= -2 and axes > 1:
        return f"axis {axis} ({counts[back]})"
    return (
        f"axis {axis} (the sentences)"
        if axis == 0 and axes > 2
        else f"axis {axis} (the heads)"
        if axis == 1 and axes == 4
        else f"axis {axis}"
    )
