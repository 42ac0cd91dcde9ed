"""Answers that learners write, wrong and right, with which the checks are proved.

A case is a base text and the lines that are replaced in it, so that each shows nothing but its
mistake. `python -m tests.answers` judges all of them and prints how many were detected, named,
and falsely refused.
"""

import importlib
import pkgutil
from dataclasses import dataclass

from mha_lib.checks import exercises

PRELUDE = "import copy\nimport math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


@dataclass(frozen=True)
class Answer:
    """One answer: the check it is for, its source, and the id of the mistake (None = it is right)."""

    check: str
    name: str
    source: str
    mistake: str | None = None

    def load(self) -> object:
        """Run the source; return the function or class that it defines last."""
        scope: dict = {}
        exec(compile(PRELUDE + self.source, f"<{self.check} {self.mistake} {self.name}>", "exec"), scope)
        return scope[self.name]


def edit(base: str, *changes: str) -> str:
    """Replace lines of a base text: each change is "old -> new", and old must stand there once."""
    for change in changes:
        old, new = (part.strip("\n") for part in change.split(" -> ", 1))
        if base.count(old) != 1:
            raise ValueError(f"{old!r} stands {base.count(old)} times in the base text")
        base = base.replace(old, new)
    return base


def wrong_answers() -> list[Answer]:
    return [answer for module in _modules() for answer in module.WRONG]


def right_answers() -> list[Answer]:
    return [answer for module in _modules() for answer in module.RIGHT]


def _modules() -> list:
    """Return the modules of this package in which answers stand: those named as the topics of the checks."""
    names = [module.name for module in pkgutil.iter_modules(exercises.__path__)]
    return [importlib.import_module(f"tests.answers.{name}") for name in names]
