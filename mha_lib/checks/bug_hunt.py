"""Checks in which the answer is an input: one on which a planted bug shows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_lib.checks.engine import Exercise, Probe, one_tensor
from mha_lib.checks.guard import Guard, TimeUp
from mha_lib.checks.result import NOT_ATTEMPTED, PASSED, Result

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
        lucky: the inputs that hide the bug.
    """

    def __init__(self, name: str, *, buggy: Callable, lucky: tuple[Lucky, ...], **rest):
        super().__init__(name, parts=one_tensor("output"), probes=(), mistakes=(), **rest)
        self.buggy, self.lucky = buggy, lucky

    def _judge(self, answer: object, guard: Guard) -> Result:
        call = guard.call(answer)
        if isinstance(call.error, NotImplementedError):
            return Result(self.name, NOT_ATTEMPTED, f"The result must be: {self.expects}")
        if isinstance(call.error, TimeUp):
            return self.failed("too_slow", "Your code did not finish in time and was stopped.")
        if call.error is not None:
            return self.failed("raised", f"Your code raised {type(call.error).__name__}: {call.error}")
        given = call.value
        wanted = ", ".join(self.signature)
        if not isinstance(given, (tuple, list)) or len(given) != len(self.signature):
            what = "None" if given is None else f"a {type(given).__name__}"
            return self.failed("not_an_input", f"You returned {what}; asked for are the arguments ({wanted}).")
        right = guard.call(self.reference, *_copies(given))
        if right.error is not None:
            return self.failed(
                "input_does_not_fit",
                f"Even the right function refuses this input: {type(right.error).__name__}: {right.error}",
            )
        facts = {"seen on": self.describe(Probe("", tuple(given)))}
        wrong = guard.call(self.buggy, *_copies(given))
        if wrong.error is not None:
            said = f"{type(wrong.error).__name__}: {wrong.error}".splitlines()[0]
            return Result(self.name, PASSED, "Your input shows the bug: the function raises on it.", facts=facts | {"it says": said})
        if not isinstance(right.value, Tensor) or right.value.isnan().any() or not right.value.numel():
            return self.failed("input_without_answer", "On this input even the right output holds no number.", facts)
        if wrong.value.shape != right.value.shape:
            return Result(self.name, PASSED, "Your input shows the bug: the output has another shape.", facts=facts)
        shown, good = wrong.value.detach(), right.value.detach()
        gap = (shown - good).double().abs().nan_to_num(nan=float("inf"))
        if gap.max() > VISIBLE:
            at = torch.unravel_index(gap.argmax(), gap.shape)
            at = tuple(int(i) for i in at)
            facts["seen on"] += f", at output{list(at)}"
            facts["with the bug"] = f"{float(shown[at]):.4g}"
            facts["right"] = f"{float(good[at]):.4g}"
            return Result(self.name, PASSED, "Your input shows the bug.", facts=facts)
        for lucky in self.lucky:
            if lucky.holds(*given):
                return self.failed(lucky.id, lucky.says, facts)
        return self.failed("bug_stays_hidden", "On this input the buggy and the right function give the same.", facts)


def _copies(given: tuple) -> list:
    return [a.clone() if isinstance(a, Tensor) else a for a in given]
