"""Attention taken apart into steps: with one of them replaced it is a mimic, with none the reference.

Every mimic of a known mistake comes from here, so two mistakes can be made at once, and every value
on the way has a name by which the verdict can speak of it.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.heads import merge_heads, split_heads


def _unnoted(name: str, value: Tensor) -> Tensor:
    return value


class Recipe:
    """A computation made of named steps.

    Args:
        cook: cook(steps, note, *arguments) computes the result; note(words, tensor) returns the tensor
            and keeps it under a name for the verdict.
        steps: the right way of each step.
    """

    def __init__(self, cook: Callable, **steps: Callable):
        self.cook, self.steps = cook, steps

    def __call__(self, **replaced: Callable) -> "Mimic":
        unknown = set(replaced) - set(self.steps)
        if unknown:
            raise TypeError(f"this recipe has no step {', '.join(sorted(unknown))}; it has {', '.join(self.steps)}")
        return Mimic(self, replaced)

    def way(self, *arguments) -> dict[str, Tensor]:
        """Return the values on the right way, by name, in their order."""
        noted: dict[str, Tensor] = {}
        self.cook(_Steps(self.steps), lambda name, value: noted.setdefault(name, value), *arguments)
        return noted


class Mimic:
    """A recipe with some steps replaced; called like the reference."""

    def __init__(self, recipe: Recipe, replaced: dict[str, Callable]):
        self.recipe, self.replaced = recipe, replaced
        self._steps = _Steps(recipe.steps | replaced)

    def __call__(self, *arguments, **named):
        return self.recipe.cook(self._steps, _unnoted, *arguments, **named)

    def with_(self, other: "Mimic") -> "Mimic | None":
        """Return both mistakes at once, or None where they replace the same step."""
        if self.recipe is not other.recipe or self.replaced.keys() & other.replaced.keys():
            return None
        return Mimic(self.recipe, self.replaced | other.replaced)


class _Steps:
    def __init__(self, steps: dict[str, Callable]):
        self.__dict__.update(steps)


# -- the right steps


def dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1)


def times(factor: Callable) -> Callable:
    """Return the step that multiplies the scores by factor(query, key, value)."""
    return lambda scores, query, key, value: scores * factor(query, key, value)


by_root = times(lambda query, key, value: query.size(-1) ** -0.5)


def times_of(factor: Callable) -> Callable:
    """Return the step that multiplies the scores by factor(d_k, number of heads, number of keys)."""
    return times(lambda query, key, value: factor(query.size(-1), query.size(1), key.size(-2)))


def fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


def by_head(hide: Callable) -> Callable:
    """Return a step that hides with a mask into which the head axis was put."""
    return lambda scores, mask: hide(scores, mask.unsqueeze(1) if mask.dim() == 3 else mask)


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def drop(weights: Tensor, dropout: Callable | None) -> Tensor:
    return weights if dropout is None else dropout(weights)


def mix(weights: Tensor, value: Tensor, key: Tensor, query: Tensor) -> Tensor:
    return weights @ value


def pair(output: Tensor, weights: Tensor, scores: Tensor) -> tuple:
    return output, weights


def softmax_by_hand(shift: Callable, divide: Callable) -> Callable:
    """Return a softmax written by hand: exp of the shifted scores, then the division."""
    return lambda scores: divide(torch.exp(scores - shift(scores)))


def linear(weights: dict, role: str, x: Tensor) -> Tensor:
    return F.linear(x, *weights[role])


# -- the recipes


def attend(steps, note, query, key, value, mask=None, dropout=None):
    """Return (output, weights); the core of every recipe here."""
    table = note("the dot products", steps.dot(query, key, value))
    table = note("the divided scores", steps.scale(table, query, key, value))
    if mask is not None:
        table = note("the hidden scores", steps.hide(table, mask))
    weights = note("the weights", steps.normalise(table))
    dropped = steps.drop(weights, dropout)
    if dropout is not None:
        note("the dropped weights", dropped)
    output = note("the mixed values", steps.mix(dropped, value, key, query))
    return steps.give(output, weights, table)


CORE = {"dot": dot, "scale": by_root, "hide": fill, "normalise": softmax, "drop": drop, "mix": mix, "give": pair}

attention_with = Recipe(attend, **CORE)


def cleared(scores: Tensor) -> Tensor:
    """Softmax, and 0 in every cell that was hidden with minus infinity: also where the whole row was."""
    return scores.softmax(-1).masked_fill(scores == -math.inf, 0.0)


clearing_with = Recipe(attend, **CORE | {"normalise": cleared})


def _attend_by_head(steps, note, query, key, value, num_heads, mask=None):
    whole = steps.feed(query, key, value)
    q, k, v = steps.heads(*(steps.split(x, num_heads) for x in whole))
    for name, x in zip(("queries", "keys", "values"), (q, k, v)):
        note(f"the {name} by head", x)
    output, weights = attend(steps, note, q, k, v, mask)
    return note("the merged heads", steps.merge(output)), steps.weights(weights)


_BY_HEAD = CORE | {
    "feed": lambda query, key, value: (query, key, value),
    "heads": lambda q, k, v: (q, k, v),
    "split": split_heads,
    "merge": merge_heads,
    "hide": by_head(fill),
    "weights": lambda weights: weights,
}

heads_with = Recipe(_attend_by_head, **_BY_HEAD)


def _project_all(steps, note, weights, inputs):
    found = []
    for name, role, x in zip(("queries", "keys", "values"), steps.through(), inputs):
        found.append(x if role is None else note(f"the projected {name}", steps.project(weights, role, x)))
    return found


def _one_head(steps, note, weights_of, d_model, d_k, query, key, value):
    inputs = steps.feed(query, key, value)
    return attend(steps, note, *_project_all(steps, note, weights_of(d_model, d_k), inputs))


single_head_with = Recipe(
    _one_head,
    **CORE,
    feed=lambda query, key, value: (query, key, value),
    through=lambda: ("w_q", "w_k", "w_v"),
    project=linear,
)


def _whole_layer(steps, note, weights_of, d_model, num_heads, query, key, value, mask=None):
    weights = weights_of(d_model, num_heads)
    q, k, v = _project_all(steps, note, weights, steps.feed(query, key, value))
    q, k, v = steps.heads(*(steps.split(x, num_heads) for x in (q, k, v)))
    for name, x in zip(("queries", "keys", "values"), (q, k, v)):
        note(f"the {name} by head", x)
    merged = note("the merged heads", steps.merge(attend(steps, note, q, k, v, mask)[0]))
    return steps.after(note("the output", steps.output(weights, merged)), query)


layer_with = Recipe(
    _whole_layer,
    **_BY_HEAD,
    through=lambda: ("w_q", "w_k", "w_v"),
    project=linear,
    output=lambda weights, merged: linear(weights, "w_o", merged),
    after=lambda output, query: output,
)


def on(recipe: Recipe, mistakes: tuple, *, without: tuple[str, ...] = (), hide: Callable = lambda step: step) -> list:
    """Return the mistakes of a table made on another recipe that has the same steps; hide turns that step."""
    moved = []
    for mistake in mistakes:
        steps = [m.replaced for m in mistake.mimics if isinstance(m, Mimic) and set(m.replaced) <= set(recipe.steps)]
        mimics = [Mimic(recipe, s | ({"hide": hide(s["hide"])} if "hide" in s else {})) for s in steps]
        if mimics and mistake.id not in without:
            moved.append(mistake.of(*mimics))
    return moved
