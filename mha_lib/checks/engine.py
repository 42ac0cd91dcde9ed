"""How a check judges: compare with the reference, then with what each known mistake would have given.

An exercise is data: inputs to try (Probe) and a table of known mistakes (Mistake). An answer
that agrees with the reference on every probe has passed. One that does not is compared with
the mimics of the mistakes; the first mistake that would have given the same is named.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mha_lib.checks.guard import Call, Guard, TimeUp, from_library, seed, where
from mha_lib.checks.result import FAILED, NOT_ATTEMPTED, PASSED, Result, deliver

TOLERANCE = 1e-5
# What PyTorch and mha_lib raise where sizes do not fit together.
UNFITTING = (RuntimeError, ValueError, IndexError)


class Fresh:
    """An argument that is made anew for every call, such as a module that the call may change."""

    def __init__(self, make: Callable[[], object], words: str):
        self.make, self.words = make, words

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Probe:
    """One input to try.

    Attributes:
        label: what is special about it, for the list of a passed check.
        args: the arguments; tensors are cloned before every call.
        gradient: compare the gradients with respect to the float inputs instead of the result.
        judged: False for an input that only tells two mistakes apart.
        tolerance: absolute and relative.
        cells: the values of the first tensor name its cells (it is an arange).
    """

    label: str
    args: tuple
    gradient: bool = False
    judged: bool = True
    tolerance: float = TOLERANCE
    cells: bool = False


@dataclass(frozen=True)
class Mistake:
    """A known mistake.

    Attributes:
        id: a short name, also the misconception of the result.
        says: the mistake in one sentence; it never says what to type.
        read: where to read again.
        mimics: functions that make this mistake, with the arguments of the reference.
        sign: recognises the mistake from what was seen on all probes; used when no mimic fits.
    """

    id: str
    says: str
    read: str
    mimics: tuple[Callable, ...] = ()
    sign: "Callable[[list[Trial]], bool] | None" = None


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
    """Where two results differ most."""

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


@dataclass
class Binding:
    """An answer made callable on the arguments of the probes, and what the reference needs to follow it."""

    call: Callable
    context: tuple = ()


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
            "not_a_pair",
            f"You returned a {type(value).__name__}{count}; asked for is the pair (output, weights).",
        )
    return {"output": as_tensor(value[0], "output"), "weights": as_tensor(value[1], "weights")}


def refuse_none(value: object) -> None:
    """Raise Unfit for a function that returned nothing."""
    if value is None:
        raise Unfit("returned_none", "Your function returned None. Does every path end in a return?")


def as_tensor(value: object, name: str) -> Tensor:
    if value is None:
        raise Unfit("returned_none", f"The {name} is None. Is there a return for it?")
    if not isinstance(value, Tensor):
        raise Unfit("wrong_type", f"The {name} is a {type(value).__name__}; asked for is a tensor.")
    return value


def same(a: Seen, b: Seen, tolerance: float = TOLERANCE) -> bool:
    """Say whether two observations agree: the same numbers, or the same kind of failure."""
    if a.changed != b.changed or (a.error is None) != (b.error is None):
        return False
    if a.error is not None:
        if isinstance(a.error, Unfit) and isinstance(b.error, Unfit):
            return a.error.id == b.error.id
        return type(a.error) is type(b.error) or all(isinstance(e, UNFITTING) for e in (a.error, b.error))
    return largest_difference(a.parts, b.parts, tolerance) is None


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
        a, b = actual.detach().cpu().double(), expected.detach().cpu().double()
        gap = (a - b).abs()
        gap = torch.where(a == b, 0.0, gap)  # also inf - inf
        gap = torch.where(a.isnan() & b.isnan(), 0.0, gap).nan_to_num(nan=math.inf)
        over = gap > tolerance * (1 + b.abs().nan_to_num(posinf=0.0, neginf=0.0))
        if over.any():
            worst = torch.where(over, gap, -1.0)
            index = tuple((worst == worst.max()).nonzero()[0].tolist())
            return Difference(part, index, float(a[index]), float(b[index]))
    return None


class Exercise:
    """A check: call it with the learner's function.

    Args:
        name: the name of the exercise and of the check.
        notebook: the number of the notebook to read again.
        signature: the names of the arguments, in order.
        expects: what the result must look like, for a learner who has not begun.
        reference: the right function.
        probes: the inputs to try, in the order in which they are worth seeing.
        mistakes: the table of known mistakes.
        parts: reads a result into named tensors.
        read: where to read again when no mistake of the table fits.
        apply: calls a function on the arguments of a probe; replaced where an answer takes fewer
            arguments than the probe has, or leaves its result in one of them.
    """

    def __init__(
        self,
        name: str,
        *,
        signature: str,
        expects: str,
        reference: Callable,
        probes: Iterable[Probe],
        mistakes: Iterable[Mistake],
        parts: Callable[[object], dict[str, Tensor]],
        read: str,
        apply: Callable = lambda function, *args: function(*args),
    ):
        self.apply = apply
        self.name, self.signature, self.expects = name, signature.split(), expects
        self.reference, self.parts, self.read = reference, parts, read
        self.probes, self.mistakes = tuple(probes), tuple(mistakes)
        self.__doc__ = f"Check your {name}. The result must be: {expects}"

    def __call__(self, answer: object) -> Result:
        return deliver(self.judge(answer))

    def judge(self, answer: object) -> Result:
        """Judge an answer without showing the result; never raises."""
        refused = self.refuse(answer)
        if refused is not None:
            return self.failed(*refused)
        with Guard() as guard:
            return self._judge(answer, guard)

    # -- what another kind of exercise replaces

    def refuse(self, answer: object) -> tuple[str, str] | None:
        """Return (id, sentence) for an object that is no answer at all."""
        if isinstance(answer, type) or not callable(answer):
            return (
                "not_a_function",
                f"You passed {_a(answer)}. Pass the function itself, by its name, without calling it.",
            )
        return None

    def bind(self, answer: object, guard: Guard) -> list[Binding]:
        """Make the answer callable; more than one binding where its parts could play several roles."""
        return [Binding(answer)]

    def laws(self, answer: object, guard: Guard) -> tuple[str, str, dict[str, str]] | None:
        """Look at what no single result shows; return (id, sentence, facts) of the first broken law."""
        return None

    # -- judging

    def _judge(self, answer: object, guard: Guard) -> Result:
        bindings = self.bind(answer, guard)
        trials: list[Trial] = []
        chosen = bindings[0]
        for binding in bindings:
            attempt = self._try(binding, guard, stop_early=len(bindings) > 1)
            unfinished = self._unfinished(attempt)
            if unfinished is not None:
                return unfinished
            if all(t.agrees for t in attempt if t.probe.judged):
                trials, chosen = attempt, binding
                break
        else:
            trials = self._try(chosen, guard)
        if all(t.agrees for t in trials if t.probe.judged):
            broken = self.laws(answer, guard)
            if broken is not None:
                id, says, facts = broken
                return self.failed(id, says, facts, self._read_of(id))
            return self.passed([t.probe.label for t in trials if t.probe.judged])
        return self._name(trials, chosen, guard, answer)

    def _try(self, binding: Binding, guard: Guard, stop_early: bool = False) -> list[Trial]:
        trials = []
        for probe in self.probes:
            want = self.observe(lambda *a, **named: self.reference(*binding.context, *a, **named), probe)
            seen = self.observe(binding.call, probe, guard)
            trials.append(Trial(probe, seen, want))
            if isinstance(seen.error, (TimeUp, RecursionError)) or _not_attempted(seen.error):
                break
            if stop_early and probe.judged and not trials[-1].agrees:
                break
        return trials

    def observe(self, function: Callable, probe: Probe, guard: Guard | None = None) -> Seen:
        """Call a function on a probe and read what came of it."""
        args = [_for_one_call(a, probe.gradient) for a in probe.args]
        if guard is not None:
            call = guard.call(self._run, function, probe, args)
        else:
            seed()
            try:
                call = Call(value=self._run(function, probe, args))
            except Exception as error:
                call = Call(error=error)
        seen = Seen(error=call.error) if call.error is not None else Seen(parts=call.value)
        seen.changed = tuple(
            name
            for name, before, after in zip(self.signature, probe.args, args)
            if isinstance(before, Tensor) and not _unchanged(before, after)
        )
        return seen

    def _run(self, function: Callable, probe: Probe, args: list) -> dict[str, Tensor]:
        parts = self.parts(self.apply(function, *args))
        if not probe.gradient:
            return parts
        inputs = [(n, a) for n, a in zip(self.signature, args) if isinstance(a, Tensor) and a.requires_grad]
        first = next(iter(parts.values()))
        steps = torch.linspace(-1, 1, first.numel(), device=first.device, dtype=first.dtype).reshape(first.shape)
        if not first.requires_grad:
            return {f"gradient of {name}": None for name, _ in inputs}
        gradients = torch.autograd.grad((first * steps).sum(), [a for _, a in inputs], allow_unused=True)
        return {f"gradient of {name}": g for (name, _), g in zip(inputs, gradients)}

    # -- verdicts

    def passed(self, labels: list[str]) -> Result:
        return Result(self.name, PASSED, f"Right on {len(labels)} inputs: {', '.join(labels)}.")

    def failed(self, id: str, says: str, facts: dict[str, str] | None = None, read: str = "") -> Result:
        return Result(self.name, FAILED, says, id, facts or {}, read or self.read)

    def _unfinished(self, trials: list[Trial]) -> Result | None:
        """Answer for code that raised the stub, hung or recursed without end."""
        trial = trials[-1]
        error = trial.seen.error
        if _not_attempted(error):
            return Result(self.name, NOT_ATTEMPTED, f"The result must be: {self.expects}")
        facts = {"seen on": self.describe(trial.probe)}
        if isinstance(error, TimeUp):
            return self.failed(
                "too_slow",
                "Your code did not finish within a few seconds and was stopped. Is there a loop that never ends?",
                facts,
            )
        if isinstance(error, RecursionError):
            return self.failed(
                "recursion", "Your function calls itself again and again until Python stops it.", facts
            )
        return None

    def _name(self, trials: list[Trial], binding: Binding, guard: Guard, answer: object) -> Result:
        first = next(t for t in trials if t.probe.judged and not t.agrees)
        mistake = self.recognise(trials, binding)
        if mistake is None:
            id, says = self._ladder(first, trials)
            read = ""
        else:
            id, says, read = mistake.id, mistake.says, mistake.read
        return self.failed(id, says, self.facts(first), read)

    def recognise(self, trials: list[Trial], binding: Binding) -> Mistake | None:
        """Return the mistake whose mimic is most like the answer, else the first whose sign fits."""
        wrong = [t for t in trials if t.probe.judged and not t.agrees]
        trials = wrong + [t for t in trials if t not in wrong]
        best, best_likeness = None, (0, 0)
        for mistake in self.mistakes:
            for mimic in mistake.mimics:
                likeness = self._likeness(mimic, trials, len(wrong), binding)
                if likeness > best_likeness:
                    best, best_likeness = mistake, likeness
                if likeness == (len(wrong), len(trials)):
                    return mistake
        if best is not None:
            return best
        for mistake in self.mistakes:
            if mistake.sign is not None and mistake.sign(trials):
                return mistake
        return None

    def _likeness(self, mimic: Callable, trials: list[Trial], wrong: int, binding: Binding) -> tuple[int, int]:
        """Count the wrong results, which come first, and all results that a mimic shares with the answer.

        Returns (0, 0) for a mimic that is unlike. The same wrong numbers on one input are no
        coincidence. An error is: it counts only beside numbers, or where all errors use the same words.
        """
        shared_wrong, shared, numbers = 0, 0, False
        errors = []
        for i, trial in enumerate(trials):
            if i < wrong and 2 * (i - shared_wrong) > wrong:
                return 0, 0
            seen = self.observe(lambda *a, **named: mimic(*binding.context, *a, **named), trial.probe)
            alike = same(seen, trial.seen, trial.probe.tolerance)
            shared += alike
            if i >= wrong or not alike:
                continue
            shared_wrong += 1
            if seen.error is not None:
                errors.append((seen.error, trial.seen.error))
            else:
                numbers |= any(part is not None for part in seen.parts.values())
        by_numbers = numbers and 2 * shared_wrong >= wrong and 2 * shared >= len(trials)
        by_errors = shared_wrong == wrong and 2 * shared > len(trials) and all(_same_words(a, b) for a, b in errors)
        return (shared_wrong, shared) if by_numbers or by_errors else (0, 0)

    def _ladder(self, trial: Trial, trials: list[Trial]) -> tuple[str, str]:
        """Say what is wrong with an answer that fits no known mistake."""
        seen, want = trial.seen, trial.want
        if isinstance(seen.error, Unfit):
            return seen.error.id, seen.error.says
        if seen.error is not None:
            return "raised", f"Your code raised {type(seen.error).__name__}."
        difference = largest_difference(seen.parts, want.parts, trial.probe.tolerance)
        if difference is None:
            names = " and ".join(seen.changed)
            return (
                "changed_input",
                f"The result is right, but your code changed its input: {names}. "
                "A caller who uses it again gets other numbers.",
            )
        part = difference.part
        if difference.got is None:
            return "no_gradient", f"The numbers are right, but no {part} arrives: the way back is cut."
        if difference.index is None:
            return "wrong_shape", _shape_words(part, difference.got, difference.want)
        tensor = seen.parts[part].detach()
        if tensor.isnan().any():
            return "nan", f"The {part} holds NaN (not a number)."
        if seen.changed:
            return "changed_input", f"Your code changed its input: {' and '.join(seen.changed)}."
        if part == "weights" and not torch.allclose(
            tensor.double().sum(-1), want.parts[part].double().sum(-1), atol=1e-4
        ):
            return "rows_do_not_sum_to_1", "The rows of your weights do not sum to 1."
        return "wrong_numbers", f"The {part} has the right shape and wrong numbers."

    def facts(self, trial: Trial) -> dict[str, str]:
        """Show the input, and yours and expected for the cell that differs most."""
        facts = {"seen on": self.describe(trial.probe)}
        error = trial.seen.error
        if isinstance(error, Unfit):
            return facts
        if error is not None:
            words = str(error).splitlines()[0][:160] if str(error) else ""
            facts["yours"] = f"{type(error).__name__}: {words}".rstrip(": ")
            line = where(error)
            if line:
                facts["raised by"] = line
            return facts
        difference = largest_difference(trial.seen.parts, trial.want.parts, trial.probe.tolerance)
        if difference is None:
            return facts
        if difference.index is None:
            if difference.got is not None:
                facts["yours"] = f"{difference.part} of shape {difference.got}"
                facts["expected"] = f"shape {difference.want}"
            return facts
        facts["seen on"] += f", at {difference.part}{list(difference.index)}"
        show = _cell_name(trial.probe) if trial.probe.cells else _number
        facts["yours"], facts["expected"] = show(difference.got), show(difference.want)
        return facts

    def describe(self, probe: Probe) -> str:
        """Name the arguments of a probe: shapes, and small values whole."""
        words = []
        for name, value in zip(self.signature, probe.args):
            if isinstance(value, Tensor):
                if value.dtype == torch.bool:
                    words.append(f"{name} {tuple(value.shape)} of True/False")
                elif not value.is_floating_point():
                    whole = f" = {value.tolist()}" if value.numel() <= 16 and not probe.cells else ""
                    words.append(f"{name} {tuple(value.shape)}{whole}")
                else:
                    words.append(f"{name} {tuple(value.shape)}")
            elif value is not None:
                words.append(f"{name} = {value}")
        return ", ".join(words)

    def _read_of(self, id: str) -> str:
        return next((m.read for m in self.mistakes if m.id == id), "")


def _for_one_call(argument: object, gradient: bool) -> object:
    if isinstance(argument, Fresh):
        return argument.make()
    if isinstance(argument, Tensor):
        return argument.detach().clone().requires_grad_(gradient and argument.is_floating_point())
    return argument


def _not_attempted(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) and not from_library(error)


def _unchanged(before: Tensor, after: Tensor) -> bool:
    if before.shape != after.shape:
        return False
    before, after = before.detach(), after.detach()
    return torch.equal(before, after) or torch.equal(before.nan_to_num(), after.nan_to_num())


def _same_words(a: BaseException, b: BaseException) -> bool:
    strip = lambda error: re.sub(r"\d+", "", str(error))[:40]
    return strip(a) == strip(b)


def _shape_words(part: str, got: tuple, want: tuple) -> str:
    if len(got) != len(want):
        return f"The {part} has {len(got)} axes, {got}; asked for are {len(want)}, {want}."
    wrong = [f"axis {i} is {g}, not {w}" for i, (g, w) in enumerate(zip(got, want)) if g != w]
    return f"The {part} has the wrong shape: {', '.join(wrong)}."


def _cell_name(probe: Probe) -> Callable[[float], str]:
    source = next(a for a in probe.args if isinstance(a, Tensor))

    def name(value: float) -> str:
        if not float(value).is_integer() or not 0 <= value < source.numel():
            return _number(value)
        index = torch.unravel_index(torch.tensor(int(value)), source.shape)
        return f"x[{', '.join(str(int(i)) for i in index)}]"

    return name


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _a(thing: object) -> str:
    if thing is None:
        return "None"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}"
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
