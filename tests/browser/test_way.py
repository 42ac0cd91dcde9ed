"""A learner's whole way, from the command of README: read, follow the link, answer, come back; and what a learner does not see."""

import subprocess

import pytest

from mha_lib.checks.read import DOT
from tests.browser.lab import FIRST, Lab, first_minute
from tests.browser.test_answers import CHAPTER, cell_of

FIRST_MINUTE = 30.0
# What nbgrader puts into JupyterLab: a menu, a button above a notebook, a panel at the right, and pages of its server.
NBGRADER = {
    "menu": 'li.lm-MenuBar-item:has-text("nbgrader")',
    "button": '.jp-NotebookPanel-toolbar :text-is("Validate")',
    "panel": '.jp-SideBar .lm-TabBar-tab:is([title*="assignment" i], [title*="nbgrader" i], [data-id*="nbgrader" i])',
}
PAGES = ("formgrader", "assignments", "courses", "nbgrader_version")


@pytest.fixture
def fresh(tmp_path):
    """A lab of one test's own."""
    with Lab(tmp_path) as lab:
        yield lab


def test_from_the_command_to_an_answered_exercise_and_back(chromium, fresh):
    learner = fresh.learner(chromium)
    took = first_minute(fresh, learner)
    assert took <= FIRST_MINUTE, f"{took:.0f} s from the command to the end of chapter 1"
    assert learner.notebook.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert learner.follow("exercises 1") == CHAPTER
    learner.wait_for_kernel()
    learner.run_all()
    cell = cell_of(learner, "scores")
    learner.replace_stub(cell, ["return query @ key"])
    learner.answer_and_check()
    learner.notebook.locator('[role="status"]:has-text("scores: not yet")').wait_for()
    assert learner.follow(str(DOT)) == FIRST
    learner.notebook.get_by_role("heading", name=DOT.title).wait_for()
    assert learner.follow("exercises 1") == CHAPTER
    cell.locator('.cm-line:has-text("return query")').click()
    for key in ("Home", "Shift+End", "Delete"):
        learner.page.keyboard.press(key)
    learner.type_lines(["return query @ key.transpose(-2, -1)"])
    learner.answer_and_check()
    learner.notebook.locator('[role="status"]:has-text("scores: passed")').wait_for()
    assert learner.follow("here") == FIRST


def test_a_learner_sees_nothing_of_nbgrader(chromium, fresh):
    learner = fresh.learner(chromium)
    learner.open(CHAPTER)
    assert {name: learner.page.locator(where).count() for name, where in NBGRADER.items()} == dict.fromkeys(NBGRADER, 0)
    assert [page for page in PAGES if fresh.has(page)] == []


def test_a_teacher_sees_it(chromium, tmp_path):
    """The places looked at above are the right ones."""
    lab = Lab(tmp_path)
    done = subprocess.run(["make", "teacher"], cwd=lab.course, capture_output=True, text=True)
    assert "nbgrader is shown" in done.stdout, done.stdout + done.stderr
    with lab:
        learner = lab.learner(chromium)
        learner.open(CHAPTER)
        for where in NBGRADER.values():
            learner.page.locator(where).first.wait_for()
        assert [page for page in PAGES if not lab.has(page)] == []
