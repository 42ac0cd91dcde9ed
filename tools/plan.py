"""What a teacher plans with: exercises, points and minutes of every chapter, and which chapters fill which week.

The minutes are the estimates at the beginning of the chapters, the points those of the checks in solutions/.
"""

import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
MINUTES = re.compile(r"\*Reading: about (\d+) minutes\.(?: Exercises: about (\d+)\.)?\*")
# What is planned, in days or in weeks, and the chapters of each of them.
PLANS = {
    "One week, the way to the layer and to what its heads learn": ("day", ((0, 1, 2), (3,), (4,), (5,), (8,))),
    "Five weeks, the whole course": ("week", ((0, 1, 2, 3), (4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14))),
    "Ten weeks, the whole course": ("week", ((0, 1, 2), (3,), (4,), (5,), (6, 7), (8,), (9,), (10, 11), (12, 13), (14,))),
}


def minutes() -> dict[int, tuple[int, int]]:
    """Return the minutes for reading and for the exercises of each chapter.

    Raises:
        ValueError: a chapter does not say them; the message names it.
    """
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        said = MINUTES.search(nbformat.read(path, as_version=4).cells[0].source)
        if said is None:
            raise ValueError(f"{path.name} does not begin with *Reading: about N minutes. Exercises: about N.*")
        found[int(path.name[:2])] = (int(said[1]), int(said[2] or 0))
    return found


def looks_back(number: int) -> list[int]:
    """Return the earlier chapters that the texts of a chapter name."""
    (path,) = (ROOT / "notebooks").glob(f"{number:02}_*.ipynb")
    texts = " ".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
    named = {int(n) for n in re.findall(r"\b[Cc]hapter (\d+)", texts)}
    return sorted(n for n in named if 0 < n < number)


def points() -> str:
    """Return the table of the chapters' exercises, points and minutes, and of the chapters that each looks back at."""
    lines = [
        "| chapter | exercises | points | minutes to read | minutes for the exercises | looks back at |",
        "|---|---:|---:|---:|---:|---|",
    ]
    took = minutes()
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        marked = [c.metadata.get("nbgrader", {}) for c in nbformat.read(path, as_version=4).cells]
        worth = [about.points for about in marked if about.get("grade")]
        number = int(path.name[:2])
        lines.append(f"| {number} | {len(worth)} | {sum(worth)} | {took[number][0]} | {took[number][1]} | {', '.join(map(str, looks_back(number)))} |")
    return "\n".join(lines)


def weeks() -> str:
    """Return the plans: the chapters of each day or week, and the minutes that they ask for."""
    took = {chapter: sum(both) for chapter, both in minutes().items()}
    texts = []
    for title, (unit, parts) in PLANS.items():
        asked = [sum(took[chapter] for chapter in part) for part in parts]
        rows = [f"| {i} | {', '.join(map(str, part))} | {n} |" for i, (part, n) in enumerate(zip(parts, asked), 1)]
        texts.append("\n".join([f"{title}, {sum(asked) / 60:.0f} hours:\n", f"| {unit} | chapters | minutes |", "|---|---|---:|", *rows]))
    return "\n\n".join(texts)
