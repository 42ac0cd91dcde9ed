"""Taught before used: every line of a solution has its place in a chapter or in the exercise's hint."""

import re

import pytest

from mha_lib import checks
from tests.conftest import ROOT, load, texts
from tests.teaches import TEACHES

CHAPTER_OF = {exercise.name: chapter for chapter, exercises in checks.CHAPTERS.items() for exercise in exercises}
TAUGHT = sorted({CHAPTER_OF[name] for name in TEACHES})


def solution(chapter: int):
    (path,) = (ROOT / "solutions").glob(f"{chapter:02}_*.ipynb")
    return load(path)


def lines(name: str) -> list[str]:
    """Return the lines that a learner must write."""
    for cell in solution(CHAPTER_OF[name]).cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == name:
            regions = re.findall(r"(?s)### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source)
            return [line.strip() for region in regions for line in region.splitlines() if line.strip()]
    raise LookupError(f"no cell {name} in the solutions of chapter {CHAPTER_OF[name]}")


def task(name: str) -> str:
    return "\n".join(
        cell.source
        for cell in solution(CHAPTER_OF[name]).cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") in (f"task-{name}", f"more-{name}")
    )


@pytest.fixture(scope="module")
def cells() -> dict[str, tuple[int, str]]:
    """The chapter and the text, outputs included, of every cell of the notebooks, by id."""
    return {
        cell.id: (int(path.name[:2]), "\n".join([cell.source, *(texts(cell) if cell.cell_type == "code" else ())]))
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in load(path).cells
    }


@pytest.mark.parametrize("chapter", TAUGHT)
def test_every_exercise_of_a_chapter_has_its_table(chapter):
    assert {e.name for e in checks.CHAPTERS[chapter]} <= set(TEACHES)


@pytest.mark.parametrize("name", TEACHES)
def test_every_line_of_a_solution_is_in_its_table(name):
    assert set(TEACHES[name]) == set(lines(name))


@pytest.mark.parametrize("name", TEACHES)
def test_every_place_teaches_what_the_table_says(name, cells):
    for line, places in TEACHES[name].items():
        assert places, line
        for where, piece in places:
            if where == "hint":
                assert piece in task(name), (line, piece)
                continue
            chapter, text = cells[where]
            assert chapter <= CHAPTER_OF[name], (line, where)
            assert piece in text, (line, where, piece)
