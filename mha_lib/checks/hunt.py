"""Checks in which the answer is an input: one on which a planted bug shows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_lib.checks.case import Probe
from mha_lib.checks.compare import a, one_tensor
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.explain import explain, is_stub, its_words
from mha_lib.checks.guard import Guard, TimeUp
from mha_lib.checks.result import NOT_ATTEMPTED, PASSED, Result
from mha_lib.checks.words import apart, describe

VISIBLE = 1e-3


@dataclass(frozen=True)
class Lucky:
    """A kind of input that hides the bug: how to recognise it, and why it hides."""

    id: str
    says: str
    holds: Callable[..., bool]


class BugHunt(Exercise):
    """A check of a function without arguments that returns the input for a planted bug.

    Args, beyond those of Exercise:
        buggy: the function with the bug; gets the arguments that the learner returns.
        reference: the right function of the same arguments.
        lucky: the inputs that hide the bug, and those that show something else.
        kinds: the kind of each argument, by name: "mask" for a tensor of True and False, "count" for a whole
            number, "rate" for a number from 0 to below 1, "flag" for True or False; all others are tensors of
            finite floats.
    """

    def __init__(
        self, name: str, *, buggy: Callable, lucky: tuple[Lucky, ...], kinds: dict[str, str] | None = None, **rest
    ):
        super().__init__(name, parts=one_tensor("output"), probes=(), mistakes=(), **rest)
        self.buggy, self.lucky, self.kinds = buggy, lucky, kinds or {}

    def _judge(self, answer: object, guard: Guard) -> Result:
        call = guard.call(answer)
        if is_stub(call.error):
            return Result(self.name, NOT_ATTEMPTED, f"The result must be: {self.expects}")
        if isinstance(call.error, TimeUp):
            return self.failed("too_slow", "Your code did not finish in time and was stopped.")
        if call.error is not None:
            explained = explain(call.error)
            return self.failed(explained.id, explained.says, {"yours": its_words(call.error)} | explained.facts)
        refused = self._not_an_input(call.value)
        if refused is not None:
            return self.failed(*refused)
        given = tuple(call.value)
        shown = {"seen on": describe(Probe("", given), self.signature)}
        for lucky in self.lucky:
            if lucky.id.startswith("shows_") and _holds(lucky, given):
                return self.failed(lucky.id, lucky.says, shown)
        right = guard.call(self.reference, *_copies(given))
        if right.error is not None:
            says = "Even the right function refuses this input. Look at the shapes: do they fit together?"
            return self.failed("input_does_not_fit", says, shown | {"it says": its_words(right.error)})
        if not isinstance(right.value, Tensor) or not right.value.isfinite().all() or not right.value.numel():
            return self.failed("input_without_answer", "On this input even the right output holds no number.", shown)
        wrong = guard.call(self.buggy, *_copies(given))
        if wrong.error is not None:
            says = "On this input the function raises. Asked for is one on which it runs and gives a wrong output."
            return self.failed("raises_instead", says, shown | {"it says": its_words(wrong.error)})
        if wrong.value.shape != right.value.shape:
            return Result(self.name, PASSED, "Your input shows the bug: the output has another shape.", facts=shown)
        got, good = wrong.value.detach(), right.value.detach()
        gap = (got - good).double().abs().nan_to_num(nan=float("inf"))
        if gap.max() > VISIBLE:
            at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
            shown["seen on"] += f", at output{list(at)}"
            shown["with the bug"], shown["right"] = apart(float(got[at]), float(good[at]))
            return Result(self.name, PASSED, "Your input shows the bug.", facts=shown)
        for lucky in self.lucky:
            if _holds(lucky, given):
                return self.failed(lucky.id, lucky.says, shown)
        return self.failed("bug_stays_hidden", "On this input the buggy and the right function give the same.", shown)

    def _not_an_input(self, given: object) -> tuple[str, str] | None:
        """Return (id, sentence) for what is no input of the function."""
        wanted = ", ".join(self.signature) + ("," if len(self.signature) == 1 else "")
        verb = "is" if len(self.signature) == 1 else "are"
        if not isinstance(given, (tuple, list)):
            return (
                "not_an_input",
                f"You returned {a(given)}; asked for {verb} ({wanted}).",
            )
        if len(given) != len(self.signature):
            return (
                "not_an_input",
                f"You returned {len(given)} values; asked for {verb} {len(self.signature)}: ({wanted}).",
            )
        for name, value in zip(self.signature, given):
            kind = self.kinds.get(name)
            shown = value if isinstance(value, (int, float)) else a(value)
            if kind == "count":
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    return (
                        "not_a_count",
                        f"{name} is {shown}; asked for is a whole number from 1 on.",
                    )
            elif kind == "rate":
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                    return (
                        "not_a_rate",
                        f"{name} is {shown}; asked for is a number from 0 to below 1.",
                    )
            elif kind == "flag":
                if not isinstance(value, bool):
                    return (
                        "not_a_flag",
                        f"{name} is {shown}; asked for is True or False.",
                    )
            elif not isinstance(value, Tensor):
                return "not_a_tensor", f"{name} is {a(value)}; asked for is a tensor."
            elif kind == "mask" and value.dtype != torch.bool:
                return "mask_not_bool", f"{name} holds {value.dtype}; asked for is True and False."
            elif kind is None and not (value.is_floating_point() and bool(value.isfinite().all())):
                return "not_finite_floats", f"{name} must hold finite floats; it holds {value.dtype}" + (
                    ", and some are infinite or NaN." if value.is_floating_point() else "."
                )
        return None


def _holds(lucky: Lucky, given: tuple) -> bool:
    try:
        return bool(lucky.holds(*given))
    except Exception:
        return False


def _copies(given: tuple) -> list:
    return [x.clone() if isinstance(x, Tensor) else x for x in given]
