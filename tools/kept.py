"""A learner's notebooks: where they are saved, how they are written, and what is said of what came of them."""

import os
import stat
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.carry import Carried

STAMP = "%Y-%m-%d_%H-%M-%S"  # the name of a folder of saved notebooks


def folder_for(root: Path, now: datetime) -> Path:
    return root / "saved" / now.strftime(STAMP)


def dumped(notebook: NotebookNode) -> bytes:
    return (nbformat.writes(notebook, version=4) + "\n").encode()


def shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def words(path: str, told: Carried, still_there: bool, saved: str) -> list[str]:
    lines, placed = [], []
    stay = told.answers - len(told.moved)
    if stay:
        placed.append(count(stay, "answer"))
    if told.cells:
        placed.append(f"{count(told.cells, 'cell')} of your own")
    if placed:
        lines.append(f"{path}: {' and '.join(placed)} stand{'s' if stay + told.cells == 1 else ''} in the new version. Run it again to see the checks.")
    lines += [f"{path}: your answer to {name} went with its exercise to {to}." for name, to in told.moved.items()]
    if told.homeless:
        lines.append(f"{path}: {', '.join(told.homeless)} has no place in the new version any more; it lies in {saved}/{path}.")
    if not still_there:
        lines.append(f"{path}: no longer part of the course; yours lies in {saved}.")
    return lines


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def write(path: Path, data: bytes, executable: bool = False) -> None:
    """Write a file so that at each moment either the old or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    if executable:
        part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    os.replace(part, path)
