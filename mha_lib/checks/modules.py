"""Checks of classes: the weights are read out of the learner's own module, never drawn anew."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mha_lib.checks.engine import Binding, Exercise, Probe, Seen, Trial, same
from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal
from mha_lib.checks.result import Result
from mha_lib.checks.roles import Weights, assignments, is_plain, uses_names


@dataclass(frozen=True)
class Law:
    """Something that must hold of every module, whatever its weights and their names.

    Attributes:
        test: gets the exercise, the class and a guard; returns None where the law holds, else
            the id of a mistake of the exercise's table, and facts to show.
    """

    test: Callable[["ModuleExercise", type, Guard], tuple[str, dict[str, str]] | None]


class ModuleExercise(Exercise):
    """A check of a class that inherits from nn.Module.

    Args, beyond those of Exercise:
        build_with: the names of the leading arguments of a probe that go to the constructor.
        roles: the name of each linear and the names of its (out, in) sizes.
        structure: looks at a module that failed, before its numbers are compared with the mimics;
            returns the id of a mistake that shows in its parts, or None.
        properties: laws that take the place of numbers where the names of the linears are unknown.
        narrow: an input on which few mistakes show, so that it tells most arrangements of a module
            with names of its own apart, before they are tried with every mistake.
        rules: laws that every answer must keep, also one with the right numbers.

    The reference and the mimics get a function weights_of(*constructor arguments) first.
    """

    def __init__(
        self,
        name: str,
        *,
        build_with: str,
        roles: dict[str, tuple[str, str]],
        structure: Callable[["ModuleExercise", type, Guard], str | None] = lambda exercise, answer, guard: None,
        properties: tuple[Law, ...] = (),
        narrow: Probe | None = None,
        rules: tuple[Law, ...] = (),
        **rest,
    ):
        super().__init__(name, **rest)
        self.build_with, self.roles = build_with.split(), roles
        self.structure, self.properties, self.narrow, self.rules = structure, properties, narrow, rules

    def refuse(self, answer: object) -> tuple[str, str] | None:
        if isinstance(answer, nn.Module):
            return (
                "not_a_class",
                f"You passed an object of {type(answer).__name__}. Pass the class itself, without calling it.",
            )
        if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
            what = answer.__name__ if isinstance(answer, type) else type(answer).__name__
            return ("not_a_class", f"You passed {what}, which is no class that inherits from nn.Module.")
        return None

    def bind(self, answer: type, guard: Guard) -> list[Binding]:
        modules: dict[tuple, nn.Module] = {}
        count = len(self.build_with)

        def build(*config) -> nn.Module:
            if config not in modules:
                modules[config] = self.prepare(answer, config)
            return modules[config]

        def run(*args):
            return build(*args[:count])(*args[count:])

        config = self.probes[0].args[:count]
        call = guard.call(build, *config)
        found = [] if call.error is not None else self._assignments(call.value, config)
        if not found:
            return [Binding(run, (_no_weights,))]

        def reader(choice: int) -> Callable[..., Weights]:
            return lambda *config: self._assignments(build(*config), config)[choice]

        return [Binding(run, (reader(i),)) for i in range(len(found))]

    def prepare(self, answer: type, config: tuple) -> nn.Module:
        """Build a module, give lazy layers their sizes, move every parameter away from 0, switch to eval."""
        module = answer(*config)
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            probe = next(p for p in self.probes if p.args[: len(config)] == tuple(config))
            with torch.no_grad():
                module(*(a.clone() if isinstance(a, Tensor) else a for a in probe.args[len(config) :]))
        with torch.no_grad():
            for i, parameter in enumerate(module.parameters()):
                parameter.add_(normal(*parameter.shape, seed=100 + i, scale=0.3))
        return module.eval()

    def laws(self, answer: type, guard: Guard) -> tuple[str, str, dict[str, str]] | None:
        return self._first_broken(self.rules, answer, guard)

    def _name(self, trials: list[Trial], binding: Binding, guard: Guard, answer: type) -> Result:
        id = self.structure(self, answer, guard)
        if id is not None:
            mistake = next(m for m in self.mistakes if m.id == id)
            first = next(t for t in trials if t.probe.judged and not t.agrees)
            facts = {} if binding.context[0] is _no_weights else self.facts(first)
            return self.failed(id, mistake.says, facts, mistake.read)
        if not self.properties or self._has_names(answer, guard):
            return super()._name(trials, binding, guard, answer)
        return self._by_properties(trials, guard, answer)

    def _has_names(self, answer: type, guard: Guard) -> bool:
        module = guard.call(self.prepare, answer, self.probes[0].args[: len(self.build_with)]).value
        return uses_names(module, self.roles)

    def _by_properties(self, trials: list[Trial], guard: Guard, answer: type) -> Result:
        """Judge a module whose linears have other names, and fit no arrangement that is known."""
        binding = self._likeliest(answer, guard)
        if binding is not None:
            attempt = self._try(binding, guard)
            mistake = self.recognise(attempt, binding)
            if mistake is not None:
                first = next(t for t in attempt if t.probe.judged and not t.agrees)
                return self.failed(mistake.id, mistake.says, self.facts(first), mistake.read)
        raised = next((t for t in trials if t.probe.judged and t.seen.error is not None), None)
        if raised is not None:
            id, says = self._ladder(raised, trials)
            return self.failed(id, says, self.facts(raised))
        broken = self._first_broken(self.properties + self.rules, answer, guard)
        if broken is not None:
            id, says, facts = broken
            return self.failed(id, says, facts, self._read_of(id))
        config = self.probes[0].args[: len(self.build_with)]
        if is_plain(guard.call(self.prepare, answer, config).value, self._shapes(config)):
            return super()._name(trials, self.bind(answer, guard)[0], guard, answer)
        result = self.passed([])
        names = ", ".join(self.roles)
        result.message = f"Your linears are not named {names}, so it was judged by what it does, and all of that is right."
        return result

    def _likeliest(self, answer: type, guard: Guard) -> Binding | None:
        """Return the arrangement under which the first probe gives what the reference or a mimic gives."""
        bindings = [b for b in self.bind(answer, guard) if b.context[0] is not _no_weights]
        if not bindings:
            return None
        if self.narrow is not None:
            seen = self.observe(bindings[0].call, self.narrow, guard)
            bindings = [b for b in bindings if self._gives(self.reference, b, self.narrow, seen)] or bindings
        seen = self.observe(bindings[0].call, self.probes[0], guard)
        for make in (self.reference, *(mimic for mistake in self.mistakes for mimic in mistake.mimics)):
            for binding in bindings:
                if self._gives(make, binding, self.probes[0], seen):
                    return binding
        return bindings[0]

    def _gives(self, make: Callable, binding: Binding, probe: Probe, seen: Seen) -> bool:
        """Say whether the reference or a mimic, with the weights of an arrangement, gives what was seen."""
        given = self.observe(lambda *a, **named: make(*binding.context, *a, **named), probe)
        return given.error is None and same(given, seen)

    def _first_broken(self, laws: tuple[Law, ...], answer: type, guard: Guard):
        for law in laws:
            found = law.test(self, answer, guard)
            if found is not None:
                id, facts = found
                mistake = next(m for m in self.mistakes if m.id == id)
                return id, mistake.says, facts
        return None

    def _assignments(self, module: nn.Module, config: tuple) -> list[Weights]:
        heads = dict(zip(self.build_with, config)).get("num_heads", 1)
        return assignments(module, self._shapes(config), heads)

    def _shapes(self, config: tuple) -> dict[str, tuple[int, int]]:
        sizes = dict(zip(self.build_with, config))
        return {role: (sizes[out], sizes[into]) for role, (out, into) in self.roles.items()}


def _no_weights(*config):
    raise LookupError("the module holds no linears of the sizes asked for")
