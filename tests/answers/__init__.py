"""Answers that learners write, wrong and right, with which the checks are proved.

A case is a base text and the lines that are replaced in it, so that each shows nothing but its
mistake. `python -m tests.answers` judges all of them and prints how many were detected, named,
and falsely refused.
"""

from dataclasses import dataclass

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
    from tests.answers import attention, classes, decoding, heads, masks, positions, spellings, transfer

    return [a for module in (attention, masks, heads, classes, transfer, spellings, positions, decoding) for a in module.WRONG]


def right_answers() -> list[Answer]:
    from tests.answers import attention, classes, decoding, heads, masks, positions, spellings, transfer

    return [a for module in (attention, masks, heads, classes, transfer, spellings, positions, decoding) for a in module.RIGHT]
