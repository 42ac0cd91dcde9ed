"""Checks of classes: which linear of a learner's module plays which role, and the judging that follows."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mha_lib.checks.engine import Binding, Exercise
from mha_lib.checks.guard import Guard
from mha_lib.checks.inputs import normal

Weights = dict[str, tuple[Tensor, Tensor | None]]


class ModuleExercise(Exercise):
    """A check of a class. The weights are read out of the learner's own module, never drawn anew.

    Args, beyond those of Exercise:
        class_name: the name of the class asked for.
        build_with: the names of the leading arguments of a probe that go to the constructor.
        roles: the name of each linear and the names of its (out, in) sizes.

    The reference and the mimics get a function weights_of(*constructor arguments) first.
    """

    def __init__(self, name: str, *, class_name: str, build_with: str, roles: dict, **rest):
        super().__init__(name, **rest)
        self.class_name, self.build_with, self.roles = class_name, build_with.split(), roles

    def refuse(self, answer: object) -> tuple[str, str] | None:
        if isinstance(answer, nn.Module):
            return (
                "not_a_class",
                f"You passed an object of {type(answer).__name__}. Pass the class itself, without calling it.",
            )
        if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
            what = answer.__name__ if isinstance(answer, type) else type(answer).__name__
            return (
                "not_a_class",
                f"You passed {what}, which is no class that inherits from nn.Module.",
            )
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

        first = self.probes[0].args
        call = guard.call(build, *first[:count])
        if call.error is not None:
            return [Binding(run, (_no_weights,))]
        sizes = dict(zip(self.build_with, first[:count]))
        found = list(assignments(build(*first[:count]), self._shapes(sizes)))
        if not found:
            return [Binding(run, (_no_weights,))]
        return [Binding(run, (self._reader(build, i),)) for i in range(len(found))]

    def prepare(self, answer: type, config: tuple) -> nn.Module:
        """Build a module, give lazy layers their sizes, move every parameter away from 0, switch to eval."""
        module = answer(*config)
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            probe = next(p for p in self.probes if p.args[: len(config)] == config)
            with torch.no_grad():
                module(*probe.args[len(config) :])
        with torch.no_grad():
            for i, parameter in enumerate(module.parameters()):
                parameter.add_(normal(*parameter.shape, seed=100 + i, scale=0.3))
        return module.eval()

    def _shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
        return {role: (sizes[out], sizes[into]) for role, (out, into) in self.roles.items()}

    def _reader(self, build: Callable, choice: int) -> Callable[..., Weights]:
        def weights_of(*config) -> Weights:
            shapes = self._shapes(dict(zip(self.build_with, config)))
            found = assignments(build(*config), shapes)
            return next(itertools.islice(found, choice, None))

        return weights_of


def assignments(module: nn.Module, shapes: dict[str, tuple[int, int]]) -> Iterator[Weights]:
    """Yield the ways in which a module's parameters can play the roles.

    A module that uses the names asked for has one. Any other is tried with every role for every
    matrix of the right shape: the names are then unknown, and judged by what the module computes.
    """
    named = _by_name(module, shapes)
    if named is not None:
        yield named
        return
    matrices = _matrices(module)
    wanted = list(shapes.items())
    for order in itertools.permutations(range(len(matrices))):
        if len(order) != len(wanted):
            return
        chosen = [matrices[i] for i in order]
        if all(weight.shape == shape for (weight, _), (_, shape) in zip(chosen, wanted)):
            yield {role: pair for (role, _), pair in zip(wanted, chosen)}


def _by_name(module: nn.Module, shapes: dict[str, tuple[int, int]]) -> Weights | None:
    found: Weights = {}
    for role, shape in shapes.items():
        linear = getattr(module, role, None)
        if not isinstance(linear, nn.Linear) or tuple(linear.weight.shape) != shape:
            return None
        found[role] = (linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
    return found


def _matrices(module: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """Return every weight matrix with its bias, in the order in which the module holds them."""
    return [
        (layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
        for layer in module.modules()
        if isinstance(layer, nn.Linear)
    ]


def _no_weights(*config):
    raise LookupError("the module holds no linears of the sizes asked for")
