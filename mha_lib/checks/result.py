"""What a check answers, and how it looks as text and as HTML."""

import os
from dataclasses import dataclass, field
from html import escape

PASSED, FAILED, NOT_ATTEMPTED = "passed", "failed", "not attempted"

_HEADLINES = {PASSED: "passed", FAILED: "not yet", NOT_ATTEMPTED: "not attempted yet"}
_SYMBOLS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○"}
_EDGES = {PASSED: "#2a8a4a", FAILED: "#c2410c", NOT_ATTEMPTED: "#767676"}

# The last result of every check in this process, in the order of the first calls.
session: dict[str, "Result"] = {}


@dataclass
class Result:
    """One of three outcomes, in words.

    Attributes:
        name: the exercise.
        status: "passed", "failed" or "not attempted".
        misconception: a short id of the mistake, or None.
        message: what happened, in one or two sentences.
        facts: label and text of what was seen: the input, yours, expected.
        read: where to read again, or "".
        printed: what the learner's code printed on the first input on which it did.
    """

    name: str
    status: str
    message: str
    misconception: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    read: str = ""
    printed: str = ""
    _shown_in: object = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        lines = [f"{self.name}   {_HEADLINES[self.status]}", "", _indent(self.message)]
        facts = self._all_facts()
        if facts:
            width = max(map(len, facts)) + 2
            lines.append("")
            for label, text in facts.items():
                first, *rest = text.split("\n")
                lines.append(f"  {label:<{width}}{first}")
                lines.extend(" " * (width + 2) + more for more in rest)
        if self.read:
            lines += ["", f"  read again   {self.read}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = "".join(
            f'<dt style="font-weight:600;white-space:nowrap;float:none;width:auto">{escape(label)}</dt>'
            f'<dd style="margin:0;white-space:pre-wrap;font-family:monospace">{escape(text)}</dd>'
            for label, text in self._all_facts().items()
        )
        if facts:
            facts = (
                '<dl style="display:grid;grid-template-columns:max-content 1fr;'
                f'gap:2px 16px;margin:8px 0 0 0">{facts}</dl>'
            )
        read = ""
        if self.read:
            link = getattr(self.read, "link", None)
            text = f'<a href="{escape(link)}">{escape(self.read)}</a>' if link else escape(self.read)
            read = f'<p style="margin:8px 0 0 0">read again: {text}</p>'
        return (
            f'<div role="status" style="border-left:6px solid {_EDGES[self.status]};'
            'padding:4px 12px;margin:4px 0;max-width:52em;line-height:1.45">'
            f"<strong>{_SYMBOLS[self.status]} {escape(self.name)}: {_HEADLINES[self.status]}</strong>"
            f'<p style="margin:6px 0 0 0">{escape(self.message)}</p>{facts}{read}</div>'
        )

    def _all_facts(self) -> dict[str, str]:
        return self.facts | ({"you printed": self.printed} if self.printed else {})

    def show(self) -> None:
        """Display the result now where a notebook runs, so that it shows from any line of a cell."""
        shell = _notebook_shell()
        if shell is not None:
            from IPython.display import display

            self._shown_in = None
            display(self)
            self._shown_in = shell.execution_count

    def _ipython_display_(self) -> None:
        # As the last expression of the cell that made it, a result would show twice.
        shell = _notebook_shell()
        if shell is not None and self._shown_in == shell.execution_count:
            return
        from IPython.display import display

        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)


class CheckFailed(AssertionError):
    """A check that did not pass, where only a pass counts: with MHA_CHECKS=strict, or in nbgrader."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def is_strict() -> bool:
    """Say whether anything but a pass must raise: for graders and for a learner's own CI."""
    return os.environ.get("MHA_CHECKS") == "strict" or bool(os.environ.get("NBGRADER_EXECUTION"))


def deliver(result: Result) -> Result:
    """Remember and show a result; raise CheckFailed where only a pass counts."""
    session[result.name] = result
    if is_strict() and result.status != PASSED:
        why = f" ({result.misconception})" if result.misconception else ""
        raise CheckFailed(f"{result.name}: {_HEADLINES[result.status]}{why}. {result.message}") from None
    result.show()
    return result


def _notebook_shell():
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


def _indent(text: str, width: int = 92) -> str:
    import textwrap

    return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ")
