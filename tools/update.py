"""Bring the course up to date and keep every answer.

    python tools/update.py      or: make update

First each notebook that you changed is copied to saved/, as it is. Then the course's new version comes in
place of yours, and your answers are put back into its exercises, cell by cell. Nothing is merged line by
line, so no notebook is ever left half yours and half theirs.
"""

import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "exercises", "solutions")


class CannotUpdate(Exception):
    """Something is in the way; nothing was changed. The message says what to do."""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise CannotUpdate(f"git {' '.join(arguments)} said: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def changed_files(root: Path) -> list[str]:
    """Return the tracked files that differ from the last commit."""
    return [name for name in git(root, "diff", "--name-only", "-z", "HEAD").split("\0") if name]


def answers(path: Path) -> dict[str, str]:
    """Return what stands in the answer cells of a notebook, by their nbgrader id; nothing if it cannot be read."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception:
        return {}
    marked = ((cell.metadata.get("nbgrader", {}), cell.source) for cell in notebook.cells if cell.cell_type == "code")
    return {about["grade_id"]: source for about, source in marked if about.get("solution")}


def put_back(path: Path, mine: dict[str, str]) -> list[str]:
    """Write answers into the cells of the same id; return the ids for which there is no cell any more."""
    notebook = nbformat.read(path, as_version=4)
    left = dict(mine)
    for cell in notebook.cells:
        about = cell.metadata.get("nbgrader", {})
        source = left.pop(about["grade_id"], None) if about.get("solution") else None
        if source is not None and source != cell.source:
            cell.source, cell.outputs, cell.execution_count = source, [], None
    nbformat.write(notebook, path)
    return list(left)


def check(root: Path) -> None:
    """Raise CannotUpdate unless the course's new version can simply come in place of the old one."""
    try:
        git(root, "rev-parse", "--abbrev-ref", "@{upstream}")
    except CannotUpdate:
        raise CannotUpdate("This copy of the course follows no other one. Clone the course with git, and update there.") from None
    git(root, "fetch", "--quiet")
    if git(root, "rev-list", "@{upstream}..HEAD"):
        raise CannotUpdate("You have commits of your own. Bring the two together yourself: git pull --no-rebase")
    others = [name for name in changed_files(root) if not (name.endswith(".ipynb") and name.startswith(FOLDERS))]
    if others:
        raise CannotUpdate(
            f"You changed {', '.join(others)}. Keep the change (git stash) or drop it (git checkout -- {others[0]}), then update again."
        )


def update(root: Path, now: datetime) -> str:
    """Update a checkout and return what happened, for the learner.

    Raises:
        CannotUpdate: something is in the way; nothing was changed.
    """
    check(root)
    if git(root, "rev-parse", "HEAD") == git(root, "rev-parse", "@{upstream}"):
        return "The course is up to date. Nothing was changed."
    mine = [name for name in changed_files(root) if (root / name).exists()]
    saved = root / "saved" / now.strftime("%Y-%m-%d_%H-%M-%S")
    for name in mine:
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, saved / name)
    git(root, "checkout", "HEAD", "--", *FOLDERS)
    try:
        git(root, "merge", "--ff-only", "--quiet", "@{upstream}")
    except CannotUpdate:
        for name in mine:
            shutil.copy2(saved / name, root / name)
        raise
    lines = [f"The course is up to date: {git(root, 'log', '-1', '--format=%h, %s')}"]
    if mine:
        lines.append(f"Your notebooks, as they were: {saved.relative_to(root)}")
    for name in mine:
        if name.startswith("exercises/"):
            lines += _restore(root, saved, name)
    return "\n".join(lines)


def _restore(root: Path, saved: Path, name: str) -> list[str]:
    given = answers(saved / name)
    if not (root / name).exists():
        return [f"{name}: no longer part of the course; yours lies in {saved.relative_to(root)}"]
    if not given:
        return [f"{name}: yours could not be read; it lies in {saved.relative_to(root)}"]
    left = put_back(root / name, given)
    lost = f"; no cell any more for {', '.join(left)}" if left else ""
    return [f"{name}: your answers are back{lost}. Run it again to see the checks"]


def main() -> int:
    try:
        print(update(ROOT, datetime.now()))
    except CannotUpdate as reason:
        print(reason)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
