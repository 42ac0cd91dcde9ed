"""Where am I in the exercises?

    python -m mha_lib.progress                        all of exercises/
    python -m mha_lib.progress exercises/01*.ipynb    some
    python -m mha_lib.progress --strict               exit with 1 unless everything passed
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PASSED, FAILED, NOT_ATTEMPTED, BROKEN = "passed", "failed", "not attempted", "broken"
_WORDS = {PASSED: "passed", FAILED: "not yet", NOT_ATTEMPTED: "not attempted yet", BROKEN: "could not run"}
_ASK = (
    "import json as _json, mha_lib.checks.result as _result\n"
    "print(_json.dumps([[r.name, r.status, r.misconception] for r in _result.session.values()]))"
)


@dataclass
class Step:
    """One exercise: its check, what came of it, and where it stands."""

    check: str
    status: str
    why: str = ""
    title: str = ""


@dataclass
class Chapter:
    """One notebook of exercises; problem says why it could not be run, if so."""

    path: Path
    steps: list[Step]
    problem: str = ""

    @property
    def is_done(self) -> bool:
        return not self.problem and bool(self.steps) and all(s.status == PASSED for s in self.steps)


def run(path: Path, timeout: int = 120) -> Chapter:
    """Run a notebook in a fresh kernel and collect what its checks say; never raises."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        return Chapter(path, [], f"{error}. Install the course: make env")
    if not path.is_file():
        return Chapter(path, [], "there is no such file")
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:
        return Chapter(path, [], f"the file is no notebook that can be read ({type(error).__name__})")
    asked = _asked(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell(_ASK))
    try:
        NotebookClient(
            notebook,
            timeout=timeout,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            extra_arguments=["--log-level=ERROR"],
        ).execute()
        said = json.loads(notebook.cells[-1].outputs[0].text)
    except Exception as error:
        return Chapter(path, [Step(c, BROKEN, title=t) for c, t in asked.items()], f"it did not run to its end ({type(error).__name__})")
    found = {name: Step(name, status, why or "") for name, status, why in said}
    errors = _errors(notebook)
    steps = []
    for check, title in asked.items():
        step = found.pop(check, None) or Step(check, BROKEN, errors.get(check, "its cell raised"))
        step.title = title
        steps.append(step)
    return Chapter(path, steps + list(found.values()))


def _asked(notebook) -> dict[str, str]:
    """Return the checks that a notebook calls, in order, with the heading above each."""
    asked, heading = {}, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            titles = re.findall(r"(?m)^#+ (.+)$", cell.source)
            heading = titles[-1] if titles else heading
        elif cell.cell_type == "code":
            for check in re.findall(r"(?m)^\s*checks\.(\w+)\(", cell.source):
                asked.setdefault(check, heading)
    return asked


def _errors(notebook) -> dict[str, str]:
    """Return, for each check whose cell raised, the first error since the check before it."""
    errors, since = {}, ""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        raised = [f"{o.ename}: {o.evalue}".splitlines()[0] for o in cell.get("outputs", []) if o.output_type == "error"]
        since = since or (raised[0] if raised else "")
        checks = re.findall(r"(?m)^\s*checks\.(\w+)\(", cell.source)
        if checks:
            if since:
                errors[checks[-1]] = since
            since = ""
    return errors


def report(chapters: list[Chapter]) -> str:
    """Return the text for a person: per chapter a bar and what is not passed, then where to go next."""
    lines = []
    for chapter in chapters:
        name = chapter.path.stem.replace("_", " ")
        if chapter.problem:
            lines += [f"{name}", f"  could not run: {chapter.problem}"]
            continue
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


def here(chapter: int) -> None:
    """Print the progress of one chapter from the checks that ran in this kernel so far."""
    from mha_lib.checks import CHAPTERS
    from mha_lib.checks.result import session

    if chapter not in CHAPTERS:
        raise ValueError(f"there are no exercises for chapter {chapter}; there are for {', '.join(map(str, CHAPTERS))}")
    results = [session.get(exercise.name) for exercise in CHAPTERS[chapter]]
    steps = [
        Step(e.name, NOT_ATTEMPTED) if r is None else Step(e.name, r.status, r.misconception or "")
        for e, r in zip(CHAPTERS[chapter], results)
    ]
    print("\n".join([*_bar_line(f"chapter {chapter}", steps), *_step_lines(steps)]))
    if all(s.status == PASSED for s in steps):
        print("Everything passed.")


def _bar_line(name: str, steps: list[Step]) -> list[str]:
    done = sum(s.status == PASSED for s in steps)
    return [f"{name:32} [{'#' * done}{'.' * (len(steps) - done)}] {done} of {len(steps)}"]


def _step_lines(steps: list[Step]) -> list[str]:
    width = max((len(s.check) for s in steps), default=0)
    return [f"  {s.check:{width}}  {_WORDS[s.status]}{': ' + s.why if s.why else ''}" for s in steps]


def _default_paths() -> list[Path]:
    for root in (Path.cwd(), Path(__file__).resolve().parent.parent):
        found = sorted((root / "exercises").glob("*.ipynb"))
        if found:
            return [p.relative_to(Path.cwd()) if p.is_relative_to(Path.cwd()) else p for p in found]
    return []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mha_lib.progress", description="Where am I in the exercises?")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="notebooks; default: all of exercises/")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless everything passed")
    options = parser.parse_args(arguments)
    paths = options.paths or _default_paths()
    if not paths:
        print("No exercises found here. Run this in the course's folder, or name notebooks.")
        return 1
    chapters = [run(path) for path in paths]
    print(report(chapters))
    return int(options.strict and not all(c.is_done for c in chapters))


if __name__ == "__main__":
    sys.exit(main())
