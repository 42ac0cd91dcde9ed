"""Checks of classes: the weights are read out of the learner's own module, never drawn anew."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mha_lib.checks.case import ALWAYS, UNREAD, WRONG, Binding, Probe
from mha_lib.checks.classes.roles import Weights, assignments, is_plain, uses_names
from mha_lib.checks.compare import Seen, Trial, a, same
from mha_lib.checks.exercise import Exercise, Specimen
from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal
from mha_lib.checks.result import Result
from mha_lib.checks.words import listed

EVALUATIONS, SECONDS = 400, 0.4  # what the search for the roles of unknown names may cost


class ClassExercise(Exercise):
    """A check of a class that inherits from nn.Module.

    Args, beyond those of Exercise:
        build_with: the names of the leading arguments of a probe that go to the constructor.
        roles: the name of each linear and the names of its (out, in) sizes, each a constructor argument
            or a function of them.
        narrow: an input on which few mistakes show, so that it tells most arrangements of a module
            with names of its own apart, before they are tried with every mistake.

    The reference and the mimics get a function weights_of(*constructor arguments) first. Laws get a
    ClassSpecimen; those with when=WRONG look at a module that failed before its numbers are compared
    with the mimics, those with when=UNREAD take the place of numbers where the roles are unknown.
    """

    def __init__(
        self,
        name: str,
        *,
        build_with: str,
        roles: dict[str, tuple[str | Callable[[dict], int], str | Callable[[dict], int]]],
        narrow: Probe | None = None,
        **rest,
    ):
        super().__init__(name, **rest)
        self.build_with, self.roles, self.narrow = build_with.split(), roles, narrow

    def refuse(self, answer: object) -> tuple[str, str] | None:
        if isinstance(answer, nn.Module):
            return (
                "not_a_class",
                f"You passed an object of {type(answer).__name__}. Pass the class itself, without calling it.",
            )
        if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
            what = answer.__name__ if isinstance(answer, type) else a(answer)
            return "not_a_class", f"You passed {what}, which is no class that inherits from nn.Module."
        if any(kind.__module__.startswith("mha_lib") for kind in answer.__mro__):
            return (
                "course_layer",
                "That is the course's own class, or one made from it. Asked for is a class that you write.",
            )
        return None

    def specimen(self, answer: type, guard: Guard) -> "ClassSpecimen":
        return ClassSpecimen(self, answer, guard)

    def bind(self, answer: type, guard: Guard) -> list[Binding]:
        modules: dict[tuple, nn.Module] = {}
        found: dict[tuple, list[Weights]] = {}
        count = len(self.build_with)

        def build(*config) -> nn.Module:
            if config not in modules:
                modules[config] = self.prepare(answer, config)
            return modules[config]

        def run(*args):
            return build(*args[:count])(*args[count:])

        def assigned(*config) -> list[Weights]:
            if config not in found:
                found[config] = self._assignments(build(*config), config)
            return found[config]

        config = self.probes[0].args[:count]
        call = guard.call(build, *config)
        choices = [] if call.error is not None else assigned(*config)
        if not choices:
            return [Binding(run, (no_weights,))]
        return [Binding(run, (lambda *config, i=i: assigned(*config)[i],)) for i in range(len(choices))]

    def prepare(self, answer: type, config: tuple) -> nn.Module:
        """Build a module, give lazy layers their sizes, move every parameter away from 0, switch to eval."""
        module = answer(*config)
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            probe = next(p for p in self.probes if p.args[: len(config)] == tuple(config))
            with torch.no_grad():
                module(*(x.clone() if isinstance(x, Tensor) else x for x in probe.args[len(config) :]))
        with torch.no_grad():
            for i, parameter in enumerate(module.parameters()):
                parameter.add_(normal(*parameter.shape, seed=100 + i, scale=0.3))
        return module.eval()

    def _name(self, trials: list[Trial], binding: Binding, guard: Guard, answer: type) -> Result:
        specimen = self.specimen(answer, guard)
        unread = binding.context[0] is no_weights
        first = next(t for t in trials if t.is_wrong)
        broken = self._broken(specimen, WRONG)
        if broken is not None:
            if not unread:
                broken.facts = self.facts(first) | broken.facts
            return broken
        module = specimen.build(*first.probe.args[: len(self.build_with)])
        if module is None or (uses_names(module, self.roles) and not unread):
            return super()._name(trials, binding, guard, answer)
        if not any(law.when == UNREAD for m in self.mistakes for law in m.laws):
            return (
                self._unread(first, module)
                if unread and first.seen.error is None
                else super()._name(trials, binding, guard, answer)
            )
        return self._by_properties(trials, guard, answer, specimen, unread)

    def _unread(self, first: Trial, module: nn.Module | None) -> Result:
        """Answer for a module in which the linears that were asked for cannot be found."""
        config = first.probe.args[: len(self.build_with)]
        wanted = [f"{name} {shape}" for name, shape in self._shapes(config).items()]
        held = [f"{name} {tuple(p.shape)}" for name, p in module.named_parameters()] if module is not None else []
        shown = {"seen on": ", ".join(f"{n} = {v}" for n, v in zip(self.build_with, config))}
        shown |= {"yours": listed(held) or "no parameters", "expected": f"weights of the sizes {listed(wanted)}"}
        if not held:
            says = "Your module registers no parameters: linears in a plain list or made in forward are invisible to "
            "an optimiser."
            return self.failed("no_parameters", says, shown)
        return self.failed(
            "linears_of_other_sizes",
            "Your class does not hold the linears that are asked for, in number or size.",
            shown,
        )

    def _by_properties(
        self, trials: list[Trial], guard: Guard, answer: type, specimen: "ClassSpecimen", unread: bool
    ) -> Result:
        """Judge a module whose linears have other names, and fit no arrangement that is known."""
        binding = self._likeliest(trials, answer, guard)
        if binding is not None:
            attempt = self._beside([(t.probe, t.seen) for t in trials], binding)
            found = self.recognise(attempt, binding)
            if found:
                return self.named(found[0], self.facts(next(t for t in attempt if t.is_wrong)))
        raised = next((t for t in trials if t.is_wrong and t.seen.error is not None), None)
        if raised is not None:
            id, says, more = self._unnamed(raised, trials, binding, guard)
            return self.failed(id, says, self.facts(raised) | more)
        broken = self._broken(specimen, UNREAD) or self._broken(specimen, ALWAYS)
        if broken is not None:
            return broken
        config = self.probes[0].args[: len(self.build_with)]
        if is_plain(specimen.build(*config), self._shapes(config)):
            return super()._name(trials, self.bind(answer, guard)[0], guard, answer)
        result = self.passed([])
        names = ", ".join(self.roles)
        result.message = (
            f"Your linears are not named {names}, so it was judged by what it does, and all of that is right."
        )
        return result

    def _likeliest(self, trials: list[Trial], answer: type, guard: Guard) -> Binding | None:
        """Return the arrangement under which the first probe gives what the reference or a mimic gives.

        The search stops after a number of evaluations, and sooner on a slow machine.
        """
        bindings = [b for b in self.bind(answer, guard) if b.context[0] is not no_weights]
        if not bindings:
            return None
        if self.narrow is not None:
            seen = self.observe(bindings[0].call, self.narrow, guard)
            bindings = [b for b in bindings if self._gives(self.reference, b, self.narrow, seen)] or bindings[:6]
        first, seen, until = self.probes[0], trials[0].seen, time.thread_time() + SECONDS
        makes = (self.reference, *(mimic for mistake in self.mistakes for mimic in mistake.mimics))
        tries = ((make, binding) for make in makes for binding in bindings)
        for _, (make, binding) in zip(range(EVALUATIONS), tries):
            if self._gives(make, binding, first, seen):
                return binding
            if time.thread_time() > until:
                break
        return bindings[0]

    def _gives(self, make: Callable, binding: Binding, probe: Probe, seen: Seen) -> bool:
        given = self._given(make, binding, probe)
        return given.error is None and same(given, seen)

    def _assignments(self, module: nn.Module, config: tuple) -> list[Weights]:
        heads = dict(zip(self.build_with, config)).get("num_heads", 1)
        return assignments(module, self._shapes(config), heads)

    def _shapes(self, config: tuple) -> dict[str, tuple[int, int]]:
        sizes = dict(zip(self.build_with, config))
        size = lambda of: of(sizes) if callable(of) else sizes[of]
        return {role: (size(out), size(into)) for role, (out, into) in self.roles.items()}


class ClassSpecimen(Specimen):
    """A class under the eyes of the laws of its exercise; what one law builds, the next need not build again."""

    def __init__(self, exercise: ClassExercise, answer: type, guard: Guard):
        super().__init__(exercise, answer, guard)
        self._built: dict[tuple, nn.Module | None] = {}
        self.known: dict[str, object] = {}

    def build(self, *config) -> nn.Module | None:
        """Return a module in eval mode, its parameters away from 0, or None if it cannot be built."""
        if config not in self._built:
            self._built[config] = self.guard.call(self.exercise.prepare, self.answer, config).value
        return self._built[config]

    def once(self, find: Callable[["ClassSpecimen"], object]) -> object:
        """Return what find(self) gives, computed for the first law that asks."""
        if find.__name__ not in self.known:
            self.known[find.__name__] = find(self)
        return self.known[find.__name__]


def no_weights(*config):
    raise LookupError("the module holds no linears of the sizes asked for")
