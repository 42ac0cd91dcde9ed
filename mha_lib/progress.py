"""Where am I in the exercises?

    python -m mha_lib.progress                        all of exercises/
    python -m mha_lib.progress exercises/01*.ipynb    some; a folder stands for all notebooks in it
    python -m mha_lib.progress --strict               exit with 1 unless everything passed

What is asked of a notebook comes from the course, by the chapter that it belongs to, not from what stands in it.
"""

import argparse
import glob
import json
import re
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from mha_lib.kernel import Kernel, KernelEnded, Raised

PASSED, FAILED, NOT_ATTEMPTED = "passed", "failed", "not attempted"
BROKEN, UNCHECKED = "broken", "unchecked"
_WORDS = {PASSED: "passed", FAILED: "not yet", NOT_ATTEMPTED: "not attempted yet", BROKEN: "could not run", UNCHECKED: "not checked"}


@dataclass
class Step:
    """One exercise: its check, what came of it, and the heading under which it stands."""

    check: str
    status: str
    why: str = ""
    title: str = ""


@dataclass
class Chapter:
    """One notebook of exercises; problem says why it could not be run, if so."""

    path: Path
    steps: list[Step] = field(default_factory=list)
    problem: str = ""

    @property
    def is_done(self) -> bool:
        return not self.problem and bool(self.steps) and all(s.status == PASSED for s in self.steps)


def run(path: Path, timeout: float = 60) -> Chapter:
    """Run a notebook in a fresh kernel and collect what its checks say; never raises."""
    try:
        cells = [cell for cell in _read(path).cells if cell.source.strip()]
    except (ValueError, ImportError) as error:
        return Chapter(path, problem=str(error))
    titles, asked = _titles(cells), _asked(path, cells)
    try:
        results, errors = _execute(cells, path.parent, timeout)
    except Exception as error:
        return Chapter(path, [Step(c, BROKEN, title=titles.get(c, "")) for c in asked], f"no kernel could be started: {error}")
    steps = []
    for check in dict.fromkeys([*asked, *results]):
        title = titles.get(check, "")
        if check in results:
            steps.append(_said(check, *results[check], title))
        elif check in errors:
            steps.append(_could_not_run(check, errors[check], title))
        else:
            missing = "did not run" if check in _called(cells) else "is missing: put it back"
            steps.append(Step(check, UNCHECKED, f"the cell with checks.{check}(...) {missing}", title))
    return Chapter(path, steps)


def here(chapter: int | None = None) -> None:
    """Print the progress of one chapter, or of all, from the checks that ran in this kernel so far.

    Raises:
        ValueError: the chapter has no exercises.
    """
    from mha_lib.checks import CHAPTERS
    from mha_lib.checks.result import session

    if chapter is not None and chapter not in CHAPTERS:
        raise ValueError(f"there are no exercises for chapter {chapter}; there are for {', '.join(map(str, CHAPTERS))}")
    errors, is_done = _errors(_ran_here()), True
    for number in CHAPTERS if chapter is None else [chapter]:
        titles, steps = _titles_of_chapter(number), []
        for name in (exercise.name for exercise in CHAPTERS[number]):
            if name in errors:
                steps.append(_could_not_run(name, errors[name], titles.get(name, "")))
            elif name in session:
                steps.append(_said(name, session[name].status, session[name].message, titles.get(name, "")))
            else:
                steps.append(Step(name, NOT_ATTEMPTED))
        is_done = is_done and all(step.status == PASSED for step in steps)
        _print("\n".join([*_bar_line(f"chapter {number}", steps), *_step_lines(steps)]))
    if is_done:
        print("Everything passed.")


def report(chapters: list[Chapter]) -> str:
    """Return the text for a person: per chapter a bar and what is not passed, then where to go next."""
    lines = []
    for chapter in chapters:
        name = chapter.path.stem.replace("_", " ")
        if chapter.problem:
            lines += [name, f"  could not run: {chapter.problem}"]
        else:
            lines += [*_bar_line(name, chapter.steps), *_step_lines(chapter.steps)]
    lines.append("")
    following = next(((c, s) for c in chapters for s in c.steps if s.status != PASSED), None)
    broken = next((c for c in chapters if c.problem), None)
    if following is not None:
        chapter, step = following
        lines.append(f"next: {chapter.path}, {step.title or step.check}")
    elif broken is not None:
        lines.append(f"next: mend {broken.path}")
    elif any(c.steps for c in chapters):
        lines.append("Everything passed.")
    else:
        lines.append("No checks were found.")
    return "\n".join(lines)


def _said(check: str, status: str, message: str, title: str) -> Step:
    return Step(check, status, _first_sentence(message) if status == FAILED else "", title)


def _could_not_run(check: str, raised: Raised, title: str) -> Step:
    place = f"{title or 'its cell'}, line {raised.line}: " if raised.line else f"{title}: " if title else ""
    return Step(check, BROKEN, place + raised.words, title)


def _read(path: Path):
    """Return a notebook as JupyterLab reads it: small offences against the format are mended, not refused.

    Raises:
        ValueError: there is none; the message says so to a learner.
    """
    import nbformat

    if not path.is_file():
        raise ValueError("this is a folder without notebooks" if path.is_dir() else "there is no such file")
    try:
        notebook = nbformat.reads(path.read_bytes().decode("utf-8-sig"), as_version=4, capture_validation_error={})
        assert all(isinstance(cell.source, str) and cell.cell_type for cell in notebook.cells)
    except Exception as error:
        raise ValueError(f"the file is no notebook that can be read ({type(error).__name__})") from None
    return notebook


def _asked(path: Path, cells: list) -> list[str]:
    """Return the exercises of the chapter that a notebook belongs to: by its name, or by most of what stands in it."""
    from mha_lib.checks import CHAPTERS

    named = re.match(r"(\d\d)_", path.name)
    chapter = int(named[1]) if named else None
    if chapter not in CHAPTERS:
        known = {exercise.name: number for number, exercises in CHAPTERS.items() for exercise in exercises}
        found = {_mark(cell).removeprefix("check-") for cell in cells} | _called(cells)
        counted = Counter(known[name] for name in found if name in known)
        chapter = max(counted, key=counted.get, default=None)
    return [exercise.name for exercise in CHAPTERS.get(chapter, ())]


def _mark(cell) -> str:
    mark = cell.get("metadata", {}).get("nbgrader")
    return str(mark.get("grade_id", "")) if isinstance(mark, dict) else ""


def _calls(source: str) -> list[str]:
    return re.findall(r"(?m)^[^#\n]*?\bchecks\.(\w+)\(", source)


def _called(cells: list) -> set[str]:
    return {check for cell in cells if cell.cell_type == "code" for check in _calls(cell.source)}


def _titles(cells: list) -> dict[str, str]:
    """Return, for each exercise, the heading above it."""
    titles, heading = {}, ""
    for cell in cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"(?m)^#+ (.+)$", cell.source)
            heading = headings[-1] if headings else heading
        for check in [_mark(cell).removeprefix("check-"), *(_calls(cell.source) if cell.cell_type == "code" else [])]:
            if check:
                titles.setdefault(check, heading)
    return titles


def _titles_of_chapter(number: int) -> dict[str, str]:
    """Return the headings of a chapter's exercises, or nothing where its notebook is not at hand."""
    for folder in (Path.cwd(), Path(__file__).resolve().parent.parent / "exercises"):
        for path in sorted(folder.glob(f"{number:02d}_*.ipynb")):
            try:
                return _titles(_read(path).cells)
            except ValueError:
                continue
    return {}


@dataclass
class _Ran:
    """A code cell that ran, with what it raised."""

    source: str
    raised: Raised | None


def _execute(cells: list, folder: Path, timeout: float) -> tuple[dict[str, tuple[str, str]], dict[str, Raised]]:
    """Run the cells; return what the checks said, and for each exercise that could not run why.

    A cell that ends the kernel, or that nothing stops, is left out in another attempt, so that it hides no other.
    """
    fatal: dict[int, Raised] = {}
    while True:
        ran, results, at = [], {}, None
        try:
            with Kernel(folder, timeout, results_of="__import__('mha_lib.progress', fromlist=['_']).said_in_this_kernel()") as kernel:
                for at, cell in enumerate(cells):
                    if cell.cell_type == "code":
                        ran.append(_Ran(cell.source, fatal[at] if at in fatal else kernel.run(cell.source)))
                results = kernel.results()
        except KernelEnded as ended:
            if at is None or at in fatal:
                raise
            fatal[at] = Raised(str(ended))
            continue
        return {name: tuple(said) for name, said in results.items()}, _errors(ran)


def said_in_this_kernel() -> str:
    """Return, as JSON, what each check that ran in this process said last."""
    from mha_lib.checks.result import session

    return json.dumps({name: (result.status, result.message) for name, result in session.items()})


def _ran_here() -> list[_Ran]:
    """Return the cells that ran in this kernel so far, each text where it ran last."""
    try:
        from IPython import get_ipython

        history = get_ipython().history_manager
        sources, raised = history.input_hist_raw, getattr(history, "exceptions", {})
    except (ImportError, AttributeError):
        return []
    ran = []
    for count, source in enumerate(sources):
        if count and source.strip():
            told = raised.get(count)
            error = Raised.told(told["ename"], told["evalue"], told["traceback"]) if told else _syntax_error(source)
            ran.append(_Ran(source, error))
    return ran


def _syntax_error(source: str) -> Raised | None:
    """Return why a cell cannot be compiled; older versions of IPython do not remember it."""
    try:
        compile(source, "cell", "exec")
    except SyntaxError as error:
        if not re.search(r"(?m)^\s*[%!?]|\bawait\b", source):
            return Raised.told(type(error).__name__, str(error), [])
    except ValueError:
        pass
    return None


def _errors(ran: list[_Ran]) -> dict[str, Raised]:
    """Return, for each check that could not run or judged an older answer, the first error since the check before it.

    An error is settled by a later cell that defines the same.
    """
    errors: dict[str, Raised] = {}
    since: list[_Ran] = []
    for cell in ran:
        checks = _calls(cell.source)
        if cell.raised:
            since.append(cell)
        else:
            since = [earlier for earlier in since if not _defined(earlier.source) & _defined(cell.source)]
        for check in checks:
            errors.pop(check, None)
            counts = [earlier for earlier in since if cell.raised or _defined(earlier.source)]
            if counts:
                errors[check] = counts[0].raised
        if checks:
            since = []
    return errors


def _defined(source: str) -> set[str]:
    return set(re.findall(r"(?m)^\s*(?:def|class) +(\w+)", source))


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    return re.match(r".*?[.!?](?=\s+[A-Z`\"'(]|$)|.*", text)[0]


def _print(text: str) -> None:
    """Print what the code page of a terminal can show; a heading may hold more."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _bar_line(name: str, steps: list[Step]) -> list[str]:
    done = sum(s.status == PASSED for s in steps)
    return [f"{name:32} [{'#' * done}{'.' * (len(steps) - done)}] {done} of {len(steps)}"]


def _step_lines(steps: list[Step]) -> list[str]:
    width = max((len(s.check) for s in steps), default=0)
    lines = []
    for step in steps:
        text = f"{_WORDS[step.status]}{': ' + step.why if step.why else ''}"
        lines += textwrap.wrap(text, 110, initial_indent=f"  {step.check:{width}}  ", subsequent_indent=" " * (width + 4), break_on_hyphens=False)
    return lines


def _notebooks(names: list[str]) -> list[Path]:
    """Return the notebooks that are meant by names: a pattern that no shell has expanded, or a folder, stands for several."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += sorted(path.glob("*.ipynb")) or [path]
        elif glob.has_magic(name) and not path.exists():
            found += sorted(map(Path, glob.glob(name))) or [path]
        else:
            found.append(path)
    return found


def _default_paths() -> list[Path]:
    for root in (Path.cwd(), Path(__file__).resolve().parent.parent):
        found = sorted((root / "exercises").glob("*.ipynb"))
        if found:
            return [p.relative_to(Path.cwd()) if p.is_relative_to(Path.cwd()) else p for p in found]
    return []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mha_lib.progress", description="Where am I in the exercises?")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="notebooks, or folders of them; default: all of exercises/")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless everything passed")
    options = parser.parse_args(arguments)
    paths = _notebooks(options.paths) or _default_paths()
    if not paths:
        print("No exercises found here. Run this in the course's folder, or name notebooks.")
        return 1
    chapters = [run(path) for path in paths]
    _print(report(chapters))
    return int(options.strict and not all(c.is_done for c in chapters))


if __name__ == "__main__":
    sys.exit(main())
