"""Finish what the first edition's update began: it put back no more than answers whose exercise stayed in its notebook.

Whoever updates from that edition runs its own tools/update.py, which knows no better; the next update does the rest.
"""

from datetime import datetime
from pathlib import Path

from tools.carry import carry, read
from tools.kept import STAMP, dumped, folder_for, shown, words, write
from tools.repository import course_notebooks, git

SINCE = "tools/carry.py"  # the first edition has no such file
DONE = "carried"  # stands in the folder of saved notebooks that are done


def left_behind(root: Path) -> tuple[Path, str] | None:
    """Return the folder in which the first edition's update saved notebooks, and its commit; None if nothing is left to do."""
    log = (git(root, "reflog", "--date=unix", "--format=%H %gd", may_fail=True) or "").splitlines()
    moves = [(line.split()[0], int(line.rpartition("@{")[2].rstrip("}"))) for line in log]
    came = next((i for i, (commit, _) in enumerate(moves) if not _has(root, commit)), 0)
    if came == 0:  # all versions that this clone held are later ones, or the first edition is here still
        return None
    until = moves[came - 1][1] + 1
    found = [folder for folder in sorted(root.glob("saved/*/exercises")) if _begun(folder.parent) <= until]
    if not found or (found[-1].parent / DONE).exists():
        return None
    return found[-1].parent, moves[came][0]


def finish(root: Path, now: datetime) -> list[str]:
    """Put what that update left in saved/ into the exercises as they are now, and return the words for the learner."""
    left = left_behind(root)
    if left is None:
        return []
    saved, first = left
    folder = "exercises"
    written = {}
    for path in sorted((saved / folder).glob("*.ipynb")):
        try:
            written[f"{folder}/{path.name}"] = read(path.read_bytes())
        except ValueError:
            continue  # that update said so
    came = course_notebooks(root, "HEAD", folder)
    whole, told = carry(course_notebooks(root, first, folder), written, came)
    lines = [line for path in written for line in words(path, told[path], path in came, shown(saved, root))]
    for path, notebook in whole.items():
        here = (root / path).read_bytes()
        try:
            made, _ = carry({path: came[path]}, {path: read(here)}, {path: notebook})
        except ValueError:
            lines.append(f"{path}: it cannot be read, so it stays as it is.")
            continue
        write(folder_for(root, now) / path, here)
        write(root / path, dumped(made.get(path, notebook)))
    write(saved / DONE, b"")
    begin = "The update of the first edition left some of your cells behind. Your notebooks, as they were until now: "
    return [begin + shown(folder_for(root, now), root), *lines] if whole else []


def _has(root: Path, commit: str) -> bool:
    return git(root, "cat-file", "-e", f"{commit}:{SINCE}", may_fail=True) is not None


def _begun(folder: Path) -> float:
    try:
        return datetime.strptime(folder.name, STAMP).timestamp()
    except ValueError:
        return float("inf")
