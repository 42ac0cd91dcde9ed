"""What came out of an answer, beside what should have."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mha_lib.checks.case import TOLERANCE, Probe

# What PyTorch and mha_lib raise where sizes do not fit together.
UNFITTING = (RuntimeError, ValueError, IndexError)


class Unfit(Exception):
    """A result that cannot be compared at all: of the wrong type, or not the parts asked for."""

    def __init__(self, id: str, says: str):
        super().__init__(says)
        self.id, self.says = id, says


@dataclass
class Seen:
    """What came of one call: named tensors, or why there are none; and which inputs it changed."""

    parts: dict[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None
    changed: tuple[str, ...] = ()


@dataclass
class Difference:
    """Where two results differ most: index is None where they cannot be compared cell by cell."""

    part: str
    index: tuple[int, ...] | None
    got: object
    want: object


@dataclass(eq=False)
class Trial:
    """A probe, what the answer gave, and what the reference gives."""

    probe: Probe
    seen: Seen
    want: Seen

    @property
    def agrees(self) -> bool:
        return same(self.seen, self.want, self.probe.tolerance)

    @property
    def is_wrong(self) -> bool:
        return self.probe.judged and not self.agrees


def one_tensor(name: str) -> Callable[[object], dict[str, Tensor]]:
    """Return a reader for results that are one tensor."""

    def read(value: object) -> dict[str, Tensor]:
        refuse_none(value)
        return {name: as_tensor(value, name)}

    return read


def first_of(name: str) -> Callable[[object], dict[str, Tensor]]:
    """Return a reader for results that are one tensor, alone or first of a tuple or list."""

    def read(value: object) -> dict[str, Tensor]:
        refuse_none(value)
        return {name: as_tensor(value[0] if isinstance(value, (tuple, list)) and value else value, name)}

    return read


def output_and_weights(value: object) -> dict[str, Tensor]:
    """Read a result that is a pair (output, weights)."""
    refuse_none(value)
    if isinstance(value, Tensor):
        raise Unfit(
            "not_a_pair",
            f"You returned one tensor of shape {tuple(value.shape)}; asked for is the pair (output, weights).",
        )
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        raise Unfit(
            "not_a_pair", f"You returned a {type(value).__name__}{count}; asked for is the pair (output, weights)."
        )
    return {"output": as_tensor(value[0], "output"), "weights": as_tensor(value[1], "weights")}


def refuse_none(value: object) -> None:
    """Raise Unfit for a function that returned nothing."""
    if value is None:
        raise Unfit("returned_none", "Your function returned None. Does every path end in a return?")


def as_tensor(value: object, name: str) -> Tensor:
    """Return the value if it is an ordinary tensor, else raise Unfit with what it is."""
    verb = are(name)
    if value is None:
        raise Unfit("returned_none", f"The {name} {verb} None, and asked for is a tensor.")
    if not isinstance(value, Tensor):
        raise Unfit("wrong_type", f"The {name} {verb} {a(value)}; asked for is a tensor.")
    if value.device.type == "meta":
        raise Unfit("no_numbers", f"The {name} {verb} on the device meta, where tensors have a shape and no numbers.")
    if value.is_quantized or value.layout != torch.strided:
        kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
        raise Unfit("wrong_type", f"The {name} {verb} stored in another way ({kind}); asked for is an ordinary tensor.")
    return value if type(value) is Tensor else value.as_subclass(Tensor)


def are(name: str) -> str:
    """Return the verb for a part: "weights" are, "output" is."""
    return "are" if name.split(" of ")[0].endswith("s") else "is"


def a(thing: object) -> str:
    """Name a thing by its kind, with its article."""
    if thing is None:
        return "None"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}"
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' or name == 'ndarray' else 'a'} {name}"


def same(a: Seen, b: Seen, tolerance: float = TOLERANCE) -> bool:
    """Say whether two observations agree: the same numbers, or the same kind of failure."""
    if a.changed != b.changed or (a.error is None) != (b.error is None):
        return False
    if a.error is not None:
        if isinstance(a.error, Unfit) and isinstance(b.error, Unfit):
            return a.error.id == b.error.id
        return type(a.error) is type(b.error) or all(isinstance(e, UNFITTING) for e in (a.error, b.error))
    return largest_difference(a.parts, b.parts, tolerance) is None


def close(got: Tensor, want: Tensor, tolerance: float) -> bool:
    """Say whether two tensors of one shape hold the same numbers; NaN equals NaN, infinity itself."""
    return not bool(_gap(got, want, tolerance)[0].any())


def largest_difference(got: dict, want: dict, tolerance: float) -> Difference | None:
    """Find the cell that differs most, in the first part that differs."""
    for part, expected in want.items():
        actual = got.get(part)
        if actual is None or expected is None:
            if actual is not expected:
                return Difference(part, None, actual, expected)
            continue
        if actual.shape != expected.shape:
            return Difference(part, None, tuple(actual.shape), tuple(expected.shape))
        if actual.dtype != expected.dtype and (actual.is_floating_point() or actual.is_complex()):
            return Difference(part, None, actual.dtype, expected.dtype)
        over, gap = _gap(actual, expected, tolerance)
        if over.any():
            worst = torch.where(over, gap, -1.0)
            index = tuple((worst == worst.max()).nonzero()[0].tolist())
            return Difference(part, index, float(actual.detach()[index]), float(expected.detach()[index]))
    return None


def _gap(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
    """Return where two tensors differ by more than the tolerance, and by how much they differ."""
    a, b = got.detach().cpu().double(), want.detach().cpu().double()
    gap = (a - b).abs()
    gap = torch.where(a == b, 0.0, gap)  # also inf - inf
    gap = torch.where(a.isnan() & b.isnan(), 0.0, gap).nan_to_num(nan=math.inf)
    return gap > tolerance * (1 + b.abs().nan_to_num(posinf=0.0, neginf=0.0)), gap
