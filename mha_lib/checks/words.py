"""From a trial to the sentences of a verdict."""

from collections.abc import Callable

import torch
from torch import Tensor

from mha_lib.checks.case import Probe
from mha_lib.checks.compare import Trial, Unfit, are, largest_difference
from mha_lib.checks.explain import explain, its_words


def facts(trial: Trial, signature: list[str], show_one: Callable[[float], str] | None = None) -> dict[str, str]:
    """Show the input, and yours and expected for the cell that differs most."""
    found = {"seen on": describe(trial.probe, signature)}
    error = trial.seen.error
    if isinstance(error, Unfit):
        return found
    if error is not None:
        found["yours"] = its_words(error)
        explained = explain(error)
        return found | explained.facts
    difference = largest_difference(trial.seen.parts, trial.want.parts, trial.probe.tolerance)
    if difference is None:
        return found
    if isinstance(difference.got, torch.dtype):
        return found | {"yours": str(difference.got), "expected": str(difference.want)}
    if difference.index is None:
        if difference.got is not None and difference.want is not None:
            found["yours"] = f"{difference.part} of shape {difference.got}"
            found["expected"] = f"shape {difference.want}"
        return found
    if difference.index:
        found["seen on"] += f", at {difference.part}{list(difference.index)}"
    if show_one is not None:
        show: Callable = lambda *values: tuple(map(show_one, values))
    elif difference.part == "mask":
        show = lambda *values: tuple(str(bool(v)) for v in values)
    elif trial.probe.cells:
        show = lambda *values: tuple(_cell_name(trial.probe, v) for v in values)
    else:
        show = apart
    found["yours"], found["expected"] = show(difference.got, difference.want)
    return found


def describe(probe: Probe, signature: list[str]) -> str:
    """Name the arguments of a probe: shapes, and small values whole."""
    words = []
    for name, value in zip(signature, probe.args):
        if isinstance(value, Tensor):
            shape = tuple(value.shape)
            if value.dtype == torch.bool:
                words.append(f"{name} {shape} of True/False")
            elif not value.is_floating_point() and value.numel() <= 16 and not probe.cells:
                words.append(f"{name} {shape} = {value.tolist()}")
            else:
                words.append(f"{name} {shape}")
        elif value is not None:
            words.append(f"{name} = {value!r}" if isinstance(value, str) else f"{name} = {value}")
    return ", ".join(words)


def shape_words(part: str, got: tuple, want: tuple) -> str:
    """Say axis by axis how two shapes differ."""
    if len(got) != len(want):
        axes = f"{len(got)} {'axis' if len(got) == 1 else 'axes'}"
        has, verb = "have" if are(part) == "are" else "has", "is" if len(want) == 1 else "are"
        return f"The {part} {has} {axes}, {got}; asked for {verb} {len(want)}, {want}."
    wrong = [f"axis {i} is {g}, not {w}" for i, (g, w) in enumerate(zip(got, want)) if g != w]
    return f"The {part} {'have' if are(part) == 'are' else 'has'} the wrong shape: {', '.join(wrong)}."


def apart(*numbers: float) -> tuple[str, ...]:
    """Write numbers with as many digits, from four up, as tell them apart."""
    for digits in range(4, 18):
        texts = tuple(f"{n:.{digits}g}" if isinstance(n, float) else str(n) for n in numbers)
        if len(set(texts)) == len(set(numbers)):
            return texts
    return texts


def listed(words: list[str], last: str = "and") -> str:
    """Join words as a sentence does."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def _cell_name(probe: Probe, value: float) -> str:
    source = next(a for a in probe.args if isinstance(a, Tensor))
    if not float(value).is_integer() or not 0 <= value < source.numel():
        return apart(value)[0]
    index = torch.unravel_index(torch.tensor(int(value)), source.shape)
    return f"x[{', '.join(str(int(i)) for i in index)}]"
