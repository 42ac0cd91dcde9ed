"""Watch the local variables of an answer line by line, and find the first value that is off the way."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType

from torch import Tensor

from mha_lib.checks.compare import close
from mha_lib.checks.guard import is_library
from mha_lib.checks.words import apart, listed

SECONDS = 0.2
MOST = 300  # values that are kept of one run
HIDDEN, LOW = -1e8, -1e4  # a hidden score of the way lies below the first, whatever it is filled with below the second
TOLERANCE = 1e-4
RETURN = ""
BY_HEAD = " by head"  # ends the name of a step that holds all heads


@dataclass
class Value:
    """A tensor that a line of the learner's code made: the line, the name it got (RETURN: it was returned).

    unfinished: a later line writes into it.
    """

    line: int
    name: str
    tensor: Tensor
    unfinished: bool = False


def watch(function: Callable, *arguments) -> list[Value]:
    """Call a function and return the tensors that its lines make, in order; what it raises passes through.

    Only code that is no library's is watched. The trace function set before is put back.
    """
    values: list[Value] = []
    known: dict[FrameType, dict[str, tuple[int, int]]] = {}
    latest: dict[tuple[FrameType, str], Value] = {}
    lines: dict[FrameType, int] = {}
    began, before = time.thread_time(), sys.gettrace()

    def look(frame: FrameType) -> None:
        seen = known.setdefault(frame, {})
        for name, thing in list(frame.f_locals.items()):
            if type(thing) is Tensor and len(values) < MOST:
                mark = (id(thing), thing._version)
                before = seen.get(name)
                if before != mark:
                    seen[name] = mark
                    if before is not None and before[0] == mark[0] and before[1] < mark[1] and (frame, name) in latest:
                        latest[frame, name].unfinished = True
                    latest[frame, name] = Value(lines.get(frame, frame.f_lineno), name, thing.detach().clone())
                    values.append(latest[frame, name])

    def each(frame: FrameType, event: str, argument: object):
        if time.thread_time() - began > SECONDS:
            sys.settrace(before)
            return None
        if event in ("line", "return"):
            if frame in lines:
                look(frame)
            else:
                known[frame] = {n: (id(t), t._version) for n, t in frame.f_locals.items() if type(t) is Tensor}
            lines[frame] = frame.f_lineno
        if event == "return":
            for part in argument if isinstance(argument, (tuple, list)) else (argument,):
                if type(part) is Tensor and len(values) < MOST:
                    values.append(Value(frame.f_lineno, RETURN, part.detach().clone()))
        return each

    def begin(frame: FrameType, event: str, argument: object):
        return each if _is_watched(frame.f_code) else None

    sys.settrace(begin)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return values


def _is_watched(code: CodeType) -> bool:
    return not is_library(code.co_filename) and (not code.co_name.startswith("<") or code.co_name == "<lambda>")


def first_wrong(values: list[Value], way: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, str] | None:
    """Say, line by line, which values are steps of the way, up to the first that is none.

    Returns facts (line to words), or None where nothing can be said: no line made a step of the way, or
    every value is one.
    """
    way = {name: step.detach() for name, step in way.items()}
    steps = _with_parts(way)
    names = [_recognise(v.tensor, steps, inputs) for v in values]
    given_back = next((i for i in range(len(values), 0, -1) if values[i - 1].name), 0)
    right = [i for i, name in enumerate(names[:given_back]) if name is not None and name.step]
    least = min(step.numel() for step in way.values())
    unknown = [
        i for i, v in enumerate(values) if names[i] is None and not v.unfinished and _could_be_a_step(v.tensor, least)
    ]
    off = _in_place_of_a_step(values, names, way, right, unknown)
    if off is not None:
        right = [i for i in right if i < off]
    reached = {names[i].step for i in right}
    if off is None:
        off = next((i for i in unknown if not right or i > right[-1]), None)
    if off is None or (not right and values[off].name == RETURN):
        return None
    changed = [i for i in unknown if i < off and values[i].name in inputs]
    facts: dict[str, str] = {}
    for i in sorted(right[-4:] + changed[:2]):
        facts[_label(values[i])] = f"{names[i].label}, right" if names[i] else "an input, changed: no step of the way"
    following = next((name for name in way if name not in reached and _after(name, reached, way)), None)
    facts[_label(values[off])] = (
        f"the first value that is no step of the way; {_how(values[off].tensor, following, way)}"
    )
    return facts


def _in_place_of_a_step(
    values: list[Value], names: list, way: dict[str, Tensor], right: list[int], unknown: list[int]
) -> int | None:
    """Return the value that stands where a step should, if only siblings of it come out right behind it."""
    last = max((list(way).index(names[i].step) for i in right if names[i].step in way), default=-1)
    missing = [name for name in list(way)[: last + 1] if name not in {names[i].step for i in right}]
    for i in unknown:
        later = [names[j].step for j in right if j > i]
        if later and values[i].name != RETURN and not any(word in name for name in later for word in _JOINED):
            if any(way[name].shape == values[i].tensor.shape for name in missing):
                return i
    return None


_JOINED = (
    "products",
    "scores",
    "weights",
    "mixed",
    "merged",
    "sum",
    "output",
)  # steps that several others are joined in


def _could_be_a_step(tensor: Tensor, least: int) -> bool:
    return (
        tensor.dim() >= 2 and 2 * tensor.numel() >= min(least, 12) and not bool((tensor == tensor.flatten()[0]).all())
    )


def _label(value: Value) -> str:
    return f"line {value.line}" + (f", {value.name}" if value.name else ", return")


def _after(name: str, reached: set[str], way: dict[str, Tensor]) -> bool:
    order = list(way)
    done = [order.index(r) for r in reached if r in order]
    return order.index(name) > max(done, default=-1)


def _step_of(label: str, steps: dict[str, Tensor]) -> str:
    name, of_one_head, _ = label.partition(" of head ")
    return name if not of_one_head or name in steps else name + BY_HEAD


def _with_parts(way: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add to every step that has a head axis what belongs to each head alone, and the folded forms."""
    steps = dict(way)
    for name, step in way.items():
        if step.dim() == 4:
            for head in range(step.size(1)):
                steps.setdefault(f"{name.removesuffix(BY_HEAD)} of head {head}", step[:, head])
    return steps


@dataclass
class Recognised:
    """What a value is, in words, and the step of the way that it is, if it is one."""

    label: str = ""
    step: str = ""


def _recognise(tensor: Tensor, steps: dict[str, Tensor], inputs: dict[str, Tensor]) -> Recognised | None:
    """Return what a value is, or None if it is nothing known."""
    if not tensor.is_floating_point():
        return Recognised()
    for name, step in steps.items():
        if _alike(tensor, step):
            return Recognised(name, _step_of(name, steps))
    for name, given in inputs.items():
        if given.numel() == tensor.numel() and _same_numbers(tensor, given):
            return Recognised()
    for name, step in steps.items():
        if step.numel() == tensor.numel() and _is_turned(tensor, step):
            return Recognised(f"{name}, its axes moved", _step_of(name, steps))
    if any(_is_piece(tensor, whole) for whole in (*inputs.values(), *steps.values())):
        return Recognised()
    scores = [s for n, s in steps.items() if "scores" in n or "products" in n]
    for score in scores:
        for helper in _helpers(score):
            if _alike(tensor, helper):
                return Recognised()
    return None


def _is_piece(tensor: Tensor, whole: Tensor) -> bool:
    """Say whether a tensor is one entry of a whole along an axis, some neighbouring ones, or every n-th."""
    if tensor.dim() == whole.dim() - 1:
        pieces = [entry for axis in range(whole.dim()) for entry in whole.unbind(axis)]
    else:
        axes = [i for i in range(whole.dim()) if tensor.dim() == whole.dim() and tensor.size(i) != whole.size(i)]
        if len(axes) != 1 or not 0 < tensor.size(axes[0]) < whole.size(axes[0]):
            return False
        axis, size, along = axes[0], tensor.size(axes[0]), whole.size(axes[0])
        pieces = [whole.narrow(axis, i, size) for i in range(along - size + 1)]
        pieces += [whole.movedim(axis, 0)[i :: along // size].movedim(0, axis) for i in range(along // size)]
    return any(_alike(tensor, piece) or _alike(tensor, -piece) for piece in pieces)


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    hidden = b < HIDDEN
    return bool((a[hidden] < LOW).all()) and close(a.masked_fill(hidden, 0.0), b.masked_fill(hidden, 0.0), TOLERANCE)


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    return close(a.double().flatten().sort().values, b.double().flatten().sort().values, TOLERANCE)


def _is_turned(a: Tensor, b: Tensor) -> bool:
    """Say whether a is b with axes of size 1 added, heads folded into the batch, or two axes exchanged."""
    if a.squeeze().shape == b.squeeze().shape:
        return _alike(a.squeeze(), b.squeeze())
    for i in range(b.dim()):
        for j in range(i + 1, b.dim()):
            turned = b.transpose(i, j)
            if turned.shape == a.shape and _alike(a, turned):
                return True
    folded = b.flatten(0, 1) if b.dim() == 4 else None
    return folded is not None and _alike(a, folded)


def _helpers(scores: Tensor) -> list[Tensor]:
    """Return what right code computes on the way from scores to weights."""
    top = scores.amax(-1, keepdim=True)
    exp = (scores - top).exp()
    return [
        top,
        top.squeeze(-1),
        scores - top,
        scores.exp(),
        exp,
        exp.sum(-1, keepdim=True),
        scores.exp().sum(-1, keepdim=True),
        exp.sum(-1),
    ]


def _how(got: Tensor, following: str | None, way: dict[str, Tensor]) -> str:
    """Say what can be seen of a value that is no step of the way."""
    shape = tuple(got.shape)
    if got.isnan().any():
        return "it holds NaN"
    want = way.get(following) if following else None
    if want is not None and want.shape == got.shape:
        g, w = got.double(), want.double()
        if w.isfinite().all() and g.isfinite().all() and float((w * w).sum()):
            factor = float((g * w).sum() / (w * w).sum())
            if factor and close(g, factor * w, TOLERANCE):
                return f"it is {following} times {apart(factor)[0]}"
    if got.dim() >= 2 and float(got.min()) >= 0:
        sums = [axis for axis in range(got.dim()) if bool((got.sum(axis) - 1).abs().max() < 1e-4)]
        counts = {got.dim() - 1: "each row sums to 1", got.dim() - 2: "each column sums to 1, over the queries"}
        if sums:
            return listed([counts.get(axis, f"it sums to 1 along axis {axis}") for axis in sums])
    if want is not None and want.shape != got.shape:
        return f"its shape is {shape}; next on the way would be {following}, {tuple(want.shape)}"
    return f"next on the way would be {following}" if following else "next on the way would be the result"
