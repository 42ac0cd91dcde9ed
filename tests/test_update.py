"""A learner updates the course with git: every answer stays, nothing of theirs is lost."""

import shutil
import subprocess
from datetime import datetime

import nbformat
import pytest

from tests.conftest import ROOT, load
from tools.update import CannotUpdate, answers, update

EXERCISE = "exercises/01_single_head_attention.ipynb"
OTHER = "exercises/02_scaling.ipynb"
CHAPTER = "notebooks/01_single_head_attention.ipynb"
NOW = datetime(2030, 1, 2, 3, 4, 5)
SAVED = "saved/2030-01-02_03-04-05"
ANSWER = "def scores(query, key):\n    return query @ key.transpose(-2, -1)  # mine"


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def edit(path, change):
    notebook = load(path)
    change(notebook)
    nbformat.write(notebook, path)


def answer(notebook, source=ANSWER):
    cell = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "scores")
    cell.source = source


@pytest.fixture
def copies(tmp_path):
    """The course as its authors have it, and a learner's clone."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for name in (EXERCISE, OTHER, CHAPTER, EXERCISE.replace("exercises", "solutions")):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, theirs / name)
    (theirs / ".gitignore").write_text("saved/\n")
    (theirs / "README.md").write_text("old\n")
    git(theirs, "init", "-q", "-b", "main")
    git(theirs, "config", "core.autocrlf", "false")
    git(theirs, "add", "-A")
    git(theirs, "commit", "-qm", "first")
    git(tmp_path, "clone", "-q", "-c", "core.autocrlf=false", str(theirs), str(mine))
    return theirs, mine


def publish(theirs):
    """A new version: other words above the exercises, another first cell of the chapter, a new README."""

    def change(notebook):
        notebook.cells[0].source += "\n\nNewer words."

    for name in (EXERCISE, OTHER, CHAPTER):
        edit(theirs / name, change)
    (theirs / "README.md").write_text("new\n")
    git(theirs, "commit", "-qam", "second")


def test_answers_stay_and_the_rest_is_new(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    edit(mine / CHAPTER, lambda n: n.cells[0].metadata.update(collapsed=False))
    (mine / "exercises" / "notes.txt").write_text("mine")
    before = (mine / EXERCISE).read_bytes()
    publish(theirs)
    said = update(mine, NOW)
    assert f"{EXERCISE}: your answers are back" in said and SAVED in said
    new = load(mine / EXERCISE)
    assert new.cells[0].source.endswith("Newer words.")
    assert answers(mine / EXERCISE)["scores"] == ANSWER
    assert (mine / SAVED / EXERCISE).read_bytes() == before
    assert (mine / SAVED / CHAPTER).exists() and not (mine / SAVED / OTHER).exists()
    for name in (OTHER, CHAPTER, "README.md"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    assert (mine / "exercises" / "notes.txt").read_text() == "mine"
    stubs = {k: v for k, v in answers(theirs / EXERCISE).items() if k != "scores"}
    assert {k: v for k, v in answers(mine / EXERCISE).items() if k != "scores"} == stubs


def test_again_and_again(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    assert update(mine, NOW) == "The course is up to date. Nothing was changed."
    assert answers(mine / EXERCISE)["scores"] == ANSWER
    publish(theirs)
    update(mine, NOW)
    publish(theirs)
    update(mine, NOW.replace(second=6))
    assert answers(mine / EXERCISE)["scores"] == ANSWER


def test_what_has_no_place_any_more_is_said_and_saved(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    edit(mine / OTHER, lambda n: n.cells.pop())
    edit(theirs / EXERCISE, lambda n: n.cells.__setitem__(slice(2, 5), []))
    git(theirs, "rm", "-q", OTHER)
    git(theirs, "commit", "-qam", "fewer")
    said = update(mine, NOW)
    assert "no cell any more for scores" in said
    assert f"{OTHER}: no longer part of the course" in said
    assert answers(mine / SAVED / EXERCISE)["scores"] == ANSWER and (mine / SAVED / OTHER).exists()


def test_an_unreadable_notebook_is_kept_as_it_is(copies):
    theirs, mine = copies
    (mine / EXERCISE).write_text("{ half a notebook")
    publish(theirs)
    assert "could not be read" in update(mine, NOW)
    assert (mine / SAVED / EXERCISE).read_text() == "{ half a notebook"


@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (lambda mine: (mine / "README.md").write_text("my own\n"), "You changed README.md"),
        (lambda mine: git(mine, "commit", "-q", "--allow-empty", "-m", "my own"), "commits of your own"),
        (lambda mine: git(mine, "remote", "remove", "origin"), "follows no other one"),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_changes(copies, disturb, words):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    disturb(mine)
    publish(theirs)
    before = (mine / EXERCISE).read_bytes()
    with pytest.raises(CannotUpdate, match=words):
        update(mine, NOW)
    assert (mine / EXERCISE).read_bytes() == before and not (mine / "saved").exists()
