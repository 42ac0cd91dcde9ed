"""How a check judges: compare with the reference, then with what each known mistake would have given.

An answer that agrees with the reference on every probe, and keeps every law, has passed. One that does not
is compared with the mimics of the mistakes, alone and two at a time; the one that gives the same everywhere
is named. Else the verdict says how the result is related to the right one, what the exception means, or
which line made the first value that is off the way.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from mha_lib.checks import trace
from mha_lib.checks.case import ALWAYS, REMARK, Binding, Fresh, Mistake, Probe
from mha_lib.checks.compare import Seen, Trial, Unfit, a, are, largest_difference, same
from mha_lib.checks.explain import explain, is_stub, its_words, text_of
from mha_lib.checks.guard import Guard, TimeUp, seed
from mha_lib.checks.read import Heading
from mha_lib.checks.recipe import Mimic, Recipe
from mha_lib.checks.relations import relation
from mha_lib.checks.result import FAILED, NOT_ATTEMPTED, PASSED, Result, deliver
from mha_lib.checks.stub import leftover
from mha_lib.checks.words import describe, facts, listed, shape_words

# Sizes that do not fit are the end of many mistakes: such exceptions are alike only if their numbers are.
GENERAL = (
    "sizes_do_not_meet",
    "linear_does_not_fit",
    "sizes_do_not_multiply",
    "attn_mask_shape",
    "refused_by_library",
    "raised",
)
PAIRS = 0.7  # seconds of processor time for two mistakes at once


class Exercise:
    """A check: call it with the learner's function.

    Args:
        name: the name of the exercise and of the check.
        signature: the names of the arguments, in order.
        expects: what the result must look like, for a learner who has not begun.
        reference: the right function; a recipe without replaced steps also names the values on the way.
        probes: the inputs to try, in the order in which they are worth seeing.
        mistakes: the table of known mistakes.
        parts: reads a result into named tensors.
        read: where to read again when a mistake names no heading of its own.
        apply: calls a function on the arguments of a probe; replaced where an answer takes fewer
            arguments than the probe has, or leaves its result in one of them.
        way: way(*arguments) returns the values on the right way by name; default: those of the recipe.
        show: writes a number of the result in the verdict, where it stands for something else.
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
        read: Heading,
        apply: Callable = lambda function, *args: function(*args),
        way: Callable[..., dict[str, Tensor]] | None = None,
        show: Callable[[float], str] | None = None,
    ):
        self.apply, self.way, self.show = apply, way, show
        self.name, self.signature, self.expects = name, signature.split(), expects
        self.reference, self.parts, self.read = reference, parts, read
        if isinstance(reference, Recipe):
            self.reference, self.way = reference(), way or reference.way
        self.probes, self.mistakes = tuple(probes), tuple(mistakes)
        self._known: dict[tuple[Callable, int], Seen] = {}
        self.__doc__ = f"Check your {name}. The result must be: {expects}"

    def __call__(self, answer: object) -> Result:
        return deliver(self.judge(answer))

    def judge(self, answer: object) -> Result:
        """Judge an answer without showing the result; only KeyboardInterrupt passes through."""
        with Guard() as guard:
            try:
                refused = self.refuse(answer)
                result = self.failed(*refused) if refused is not None else self._judge(answer, guard)
            except Exception as error:
                result = self.failed(
                    "cannot_be_judged",
                    f"What your code returned cannot be looked at: {type(error).__name__} was raised on the way. "
                    f"The result must be: {self.expects}",
                )
            result.printed = guard.printed
        return result

    # -- what another kind of exercise replaces

    def refuse(self, answer: object) -> tuple[str, str] | None:
        """Return (id, sentence) for an object that is no answer at all."""
        if isinstance(answer, type) or not callable(answer):
            return (
                "not_a_function",
                f"You passed {a(answer)}. Pass the function itself, by its name, without calling it.",
            )
        return None

    def bind(self, answer: object, guard: Guard) -> list[Binding]:
        """Make the answer callable; more than one binding where its parts could play several roles.

        All bindings call the answer in the same way; they differ in what the reference is told.
        """
        return [Binding(answer)]

    def specimen(self, answer: object, guard: Guard) -> object:
        """Return what the laws of this exercise look at."""
        return Specimen(self, answer, guard)

    # -- judging

    def _judge(self, answer: object, guard: Guard) -> Result:
        bindings = self.bind(answer, guard)
        seen = self._see(bindings[0].call, guard)
        unfinished = self._unfinished(*seen[-1], answer)
        if unfinished is not None:
            return unfinished
        for binding in bindings:
            trials = self._beside(seen, binding, stop_early=len(bindings) > 1)
            if not any(t.is_wrong for t in trials):
                specimen = self.specimen(answer, guard)
                broken = self._broken(specimen, ALWAYS)
                if broken is not None:
                    return broken
                return self.passed([t.probe.label for t in trials if t.probe.judged], self._broken(specimen, REMARK))
        return self._name(self._beside(seen, bindings[0]), bindings[0], guard, answer)

    def _see(self, call: Callable, guard: Guard) -> list[tuple[Probe, Seen]]:
        """Call the answer once on every probe."""
        seen = []
        for probe in self.probes:
            seen.append((probe, self.observe(call, probe, guard)))
            if isinstance(seen[-1][1].error, (TimeUp, RecursionError)) or is_stub(seen[-1][1].error):
                break
        return seen

    def _beside(self, seen: list[tuple[Probe, Seen]], binding: Binding, stop_early: bool = False) -> list[Trial]:
        """Put beside what was seen what the reference gives."""
        trials = []
        for probe, got in seen:
            trials.append(Trial(probe, got, self._given(self.reference, binding, probe)))
            if stop_early and trials[-1].is_wrong:
                break
        return trials

    def _given(self, make: Callable, binding: Binding, probe: Probe) -> Seen:
        """Return what the reference or a mimic gives on a probe."""
        return self.observe(lambda *args, **named: make(*binding.context, *args, **named), probe)

    def _given_once(self, mimic: Callable, binding: Binding, probe: Probe) -> Seen:
        """Return what a mimic of the table gives on a probe; what hangs on no answer is computed once."""
        if binding.context:
            return self._given(mimic, binding, probe)
        key = mimic, id(probe)
        if key not in self._known:
            self._known[key] = self._given(mimic, binding, probe)
        return self._known[key]

    def observe(self, function: Callable, probe: Probe, guard: Guard | None = None) -> Seen:
        """Call a function on a probe and read what came of it; with a guard for a learner's code."""
        args = [_for_one_call(x, probe.gradient) for x in probe.args]
        if guard is not None:
            call = guard.call(self._run, function, probe, args)
            seen = Seen(call.value or {}, call.error)
        else:
            seed()
            try:
                seen = Seen(self._run(function, probe, args))
            except Exception as error:
                seen = Seen(error=error)
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
        inputs = [(n, x) for n, x in zip(self.signature, args) if isinstance(x, Tensor) and x.requires_grad]
        first = next(iter(parts.values()))
        steps = torch.linspace(-1, 1, first.numel(), device=first.device, dtype=first.dtype).reshape(first.shape)
        if not first.requires_grad:
            return {f"gradient of {name}": None for name, _ in inputs}
        gradients = torch.autograd.grad((first * steps).sum(), [x for _, x in inputs], allow_unused=True)
        return {f"gradient of {name}": g for (name, _), g in zip(inputs, gradients)}

    # -- verdicts

    def passed(self, labels: list[str], remark: Result | None = None) -> Result:
        said = f"Right on {len(labels)} inputs: {', '.join(labels)}."
        if remark is None:
            return Result(self.name, PASSED, said)
        return Result(self.name, PASSED, f"{said} {remark.message}", None, remark.facts, remark.read)

    def failed(self, id: str, says: str, facts: dict[str, str] | None = None, read: Heading | None = None) -> Result:
        return Result(self.name, FAILED, says, id, facts or {}, read or self.read)

    def facts(self, trial: Trial) -> dict[str, str]:
        """Show the input, and yours and expected for the cell that differs most."""
        return facts(trial, self.signature, self.show)

    def named(self, mistake: Mistake, facts: dict[str, str] | None = None) -> Result:
        return self.failed(mistake.id, mistake.says, facts, mistake.read)

    def _unfinished(self, probe: Probe, seen: Seen, answer: object) -> Result | None:
        """Answer for code that raised the stub, hung or recursed without end."""
        shown = {"seen on": describe(probe, self.signature)}
        if is_stub(seen.error):
            if leftover(seen.error):
                return self.failed(
                    "stub_left", "Your cell still reaches `raise NotImplementedError()`. Delete that line."
                )
            return Result(self.name, NOT_ATTEMPTED, f"The result must be: {self.expects}")
        if isinstance(seen.error, TimeUp):
            return self.failed(
                "too_slow",
                "Your code did not finish within a few seconds and was stopped: a loop without end, or far too much "
                "work.",
                shown,
            )
        if isinstance(seen.error, RecursionError):
            return self.failed("recursion", "Your function calls itself again and again until Python stops it.", shown)
        return None

    def _broken(self, specimen: object, when: str) -> Result | None:
        """Return the verdict on the first law that an answer breaks."""
        for mistake in self.mistakes:
            for law in mistake.laws:
                if law.when == when and (shown := law.test(specimen)) is not None:
                    return self.named(mistake, shown)
        return None

    def _name(self, trials: list[Trial], binding: Binding, guard: Guard, answer: object) -> Result:
        first = next(t for t in trials if t.is_wrong)
        shown = self.facts(first)
        found = self.recognise(trials, binding)
        if len(found) == 1:
            return self.named(found[0], shown)
        if found:
            says = f"One of two mistakes: the numbers cannot tell which. Either: {found[0].says} Or: {found[1].says}"
            return self.failed(found[0].id, says, shown, found[0].read)
        both = self._two_at_once(trials, binding)
        if both is not None:
            one, other, trial = both
            says = f"Two things at once. {one.says} And: {other.says}"
            return self.failed(f"{one.id}+{other.id}", says, self.facts(trial), one.read)
        for mistake in self.mistakes:
            if any(sign.test(trials) for sign in mistake.signs):
                return self.named(mistake, shown)
        found = self._where_it_runs(trials, binding)
        if found is not None:
            return found
        id, says, more = self._unnamed(first, trials, binding, guard)
        return self.failed(id, says, shown | more)

    def _where_it_runs(self, trials: list[Trial], binding: Binding) -> Result | None:
        """Name the mistake of an answer that gives wrong numbers on several inputs, and an exception on others."""
        raised = [t for t in trials if t.is_wrong and t.seen.error is not None]
        runs = [t for t in trials if t.seen.error is None]
        wrong = [t for t in runs if t.is_wrong and not t.probe.gradient]
        if not raised or len(wrong) < 2 or raised[0].want.error is not None or isinstance(raised[0].seen.error, Unfit):
            return None
        found = self.recognise(runs, binding)
        if len(found) != 1:
            return None
        on = f"{describe(raised[0].probe, self.signature)}: {its_words(raised[0].seen.error)}"
        return self.named(found[0], self.facts(wrong[0]) | {"and on": on})

    def recognise(self, trials: list[Trial], binding: Binding) -> list[Mistake]:
        """Return the mistakes that give what the answer gave, on every judged input: one, or two that fit alike."""
        ordered = [t for t in trials if t.is_wrong] + [t for t in trials if not t.is_wrong]
        found: dict[Mistake, int] = {}
        for mistake in self.mistakes:
            given = [partial(self._given_once, mimic, binding) for mimic in mistake.mimics]
            fits = [n for one in given if (n := self._fits(one, ordered))]
            if fits:
                found[mistake] = max(fits)
        most = max(found.values(), default=0)
        return [m for m, n in found.items() if n == most][:2]

    def _fits(self, given: Callable[[Probe], Seen], trials: list[Trial]) -> int:
        """Count the results that a mimic shares with the answer; 0 if it is unlike on a judged input.

        The same wrong numbers are no coincidence. An error is: where there are errors alone they must use the same
        words.
        """
        shared, numbers, errors = 0, False, []
        for trial in trials:
            seen = given(trial.probe)
            alike = same(seen, trial.seen, _looser(trial.probe.tolerance) if trial.is_wrong else trial.probe.tolerance)
            if not alike and trial.probe.judged:
                return 0
            shared += alike
            if trial.is_wrong and seen.error is None:
                numbers = True
            elif trial.is_wrong:
                errors.append((seen.error, trial.seen.error))
        return shared if numbers or all(_same_words(x, y) for x, y in errors) else 0

    def _two_at_once(self, trials: list[Trial], binding: Binding) -> tuple[Mistake, Mistake, Trial] | None:
        """Return the two mistakes whose steps together give what the answer gave, and an input that shows both."""
        ordered = [t for t in trials if t.is_wrong] + [t for t in trials if not t.is_wrong and t.probe.judged]
        if ordered[0].seen.error is not None or ordered[0].probe.gradient:
            return None
        made, ranks = [], Counter()  # of every step the first of the table, the commonest mistakes, first
        for mistake in self.mistakes:
            for mimic in mistake.mimics:
                if isinstance(mimic, Mimic):
                    steps = frozenset(mimic.replaced)
                    made.append((ranks[steps], mistake, mimic))
                    ranks[steps] += 1
        until = time.thread_time() + PAIRS
        # On the first input one of the two may not show, such as a mistake in masking where there is no mask.
        alone = {id(mimic) for _, _, mimic in made if self._gives_quickly(mimic, binding, ordered[0])}
        pairs = sorted(
            itertools.combinations(made, 2),
            key=lambda pair: (not {id(pair[0][2]), id(pair[1][2])} & alone, pair[0][0] + pair[1][0]),
        )
        for (_, one, first), (_, other, second) in pairs:
            if time.thread_time() > until:
                return None
            both = first.with_(second) if one is not other else None
            if (
                both is not None
                and self._gives_quickly(both, binding, ordered[0])
                and self._fits(partial(self._given, both, binding), ordered)
            ):
                wrong = [t for t in ordered if t.is_wrong]
                shows = (t for t in wrong if not any(self._gives_quickly(m, binding, t) for m in (first, second)))
                return one, other, next(shows, wrong[0])
        return None

    def _gives_quickly(self, make: Callable, binding: Binding, trial: Trial) -> bool:
        """Say whether a mimic gives what was seen on one input, without the care that a learner's code needs."""
        try:
            with torch.no_grad():
                parts = self.parts(
                    self.apply(make, *binding.context, *(_for_one_call(x, False) for x in trial.probe.args))
                )
        except Exception:
            return False
        return largest_difference(parts, trial.seen.parts, _looser(trial.probe.tolerance)) is None

    def _unnamed(
        self, trial: Trial, trials: list[Trial], binding: Binding, guard: Guard
    ) -> tuple[str, str, dict[str, str]]:
        """Say what is wrong with an answer that fits no known mistake: (id, sentence, more facts)."""
        seen, want = trial.seen, trial.want
        if isinstance(seen.error, Unfit):
            return seen.error.id, seen.error.says, {}
        if seen.error is not None:
            explained = explain(seen.error)
            return explained.id, explained.says, {}
        difference = largest_difference(seen.parts, want.parts, trial.probe.tolerance)
        if difference is None:
            names = listed(list(seen.changed))
            return (
                "changed_input",
                f"The result is right, but your code changed its input: {names}. A caller who uses it again gets "
                "other numbers.",
                {},
            )
        part = difference.part
        if difference.got is None:
            return "no_gradient", f"The numbers are right, but no {part} arrives: the way back is cut.", {}
        related = relation(trials, self.signature)
        off = self._off_the_way(trial, binding, guard) or {}
        if related is not None:
            id, says = related
            return id, f"{says} {_first_wrong_words(off)}" if off and id == "wrong_in_places" else says, off
        id, says = self._ladder(difference, trial)
        if not off:
            return id, says, off
        if id == "wrong_numbers":
            return "first_wrong_step", f"The {part} {are(part)} wrong. {_first_wrong_words(off)}", off
        return id, f"{says} {_first_wrong_words(off)}", off

    def _ladder(self, difference, trial: Trial) -> tuple[str, str]:
        part, seen = difference.part, trial.seen
        verb, has = are(part), "have" if are(part) == "are" else "has"
        if difference.index is None:
            return "wrong_shape", shape_words(part, difference.got, difference.want)
        tensor = seen.parts[part].detach()
        if tensor.isnan().any():
            return "nan", f"The {part} {'hold' if verb == 'are' else 'holds'} NaN (not a number)."
        if seen.changed:
            return "changed_input", f"Your code changed its input: {listed(list(seen.changed))}."
        if part == "weights" and not torch.allclose(
            tensor.double().sum(-1), trial.want.parts[part].double().sum(-1), atol=1e-4
        ):
            return "rows_do_not_sum_to_1", "The rows of your weights do not sum to 1."
        if tensor.dim() == 0:
            return "wrong_numbers", f"The {part} {verb} wrong."
        return "wrong_numbers", f"The {part} {has} the right shape and wrong numbers."

    def _off_the_way(self, trial: Trial, binding: Binding, guard: Guard) -> dict[str, str] | None:
        """Run the answer once more on an input, watch its lines, and say which is the first off the way."""
        if self.way is None or trial.probe.gradient:
            return None
        way = self.way(*binding.context, *(_for_one_call(x, False) for x in trial.probe.args))
        args = [_for_one_call(x, False) for x in trial.probe.args]
        watched = guard.call(trace.watch, self.apply, binding.call, *args)
        if watched.error is not None:
            return None
        inputs = {
            n: x for n, x in zip(self.signature, trial.probe.args) if isinstance(x, Tensor) and x.is_floating_point()
        }
        return trace.first_wrong(watched.value, way, inputs)


class Specimen:
    """An answer under the eyes of the laws of its exercise."""

    def __init__(self, exercise: Exercise, answer: object, guard: Guard):
        self.exercise, self.answer, self.guard = exercise, answer, guard


def _first_wrong_words(off: dict[str, str]) -> str:
    *before, where = off
    as_expected = bool(before) and all(off[label].endswith(", right") for label in before)
    return f"Your way leaves the expected one at {where}{'; up to there every step is right' if as_expected else ''}."


def _looser(tolerance: float) -> float:
    """An answer may compute a mistake in another order than its mimic does."""
    return max(tolerance, min(20 * tolerance, 0.01))


def _for_one_call(argument: object, gradient: bool) -> object:
    if isinstance(argument, Fresh):
        return argument.make()
    if isinstance(argument, Tensor):
        return argument.detach().clone().requires_grad_(gradient and argument.is_floating_point())
    return argument


def _unchanged(before: Tensor, after: Tensor) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    before, after = before.detach(), after.detach()
    return torch.equal(before, after) or torch.equal(before.nan_to_num(), after.nan_to_num())


def _same_words(one: BaseException, other: BaseException) -> bool:
    texts = [text_of(error) for error in (one, other)]
    if explain(other).id not in GENERAL:
        texts = ["".join(c for c in text if not c.isdigit())[:40] for text in texts]
    return texts[0] == texts[1]
