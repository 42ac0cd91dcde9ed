"""A learner answers by typing: wrongly, then rightly, and once without a mouse."""

import re

from tests.browser.lab import THEMES
from tests.browser import accessible
from tests.conftest import ROOT, code_cells, load, texts

CHAPTER = "exercises/01_single_head_attention.ipynb"
REGION = re.compile(r"( *)### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION", re.DOTALL)
WRONG = [
    "scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5",
    "weights = scores.softmax(dim=-2)",
    "return weights @ value, weights",
]


def answers():
    """Return, for every exercise of the chapter, its name and the bodies that its stubs ask for."""
    cells = load(ROOT / CHAPTER.replace("exercises", "solutions")).cells
    for cell in cells:
        about = cell.metadata.get("nbgrader", {})
        if about.get("solution"):
            regions = REGION.findall(cell.source)
            yield about["grade_id"], [[line.removeprefix(indent) for line in body.split("\n")] for indent, body in regions]


def cell_of(learner, exercise):
    """Return the cell in which an exercise is answered."""
    return learner.notebook.locator(f'.jp-CodeCell:has(.cm-line:text-matches("^(def|class) {exercise}\\\\b", "i"))').first


def test_all_exercises_of_a_chapter_answered_by_typing(learner):
    learner.open(CHAPTER)
    learner.run_all()
    names = []
    for exercise, bodies in answers():
        name = "SingleHeadAttention" if exercise == "single_head" else exercise
        cell = cell_of(learner, name)
        for body in bodies:
            learner.replace_stub(cell, body)
        learner.answer_and_check()
        learner.notebook.locator(f'[role="status"]:has-text("{exercise}: passed")').wait_for()
        names.append(exercise)
    learner.run_all()
    assert learner.verdicts() == dict.fromkeys(names, "passed")
    stored = learner.save(CHAPTER)
    said = "\n".join(text for cell in code_cells(stored) for text in texts(cell))
    assert "[####] 4 of 4" in said and "Everything passed." in said


def test_a_wrong_answer_is_told_its_mistake(learner, artifacts):
    learner.open(CHAPTER)
    learner.run_all()
    learner.replace_stub(cell_of(learner, "attention"), WRONG)
    learner.answer_and_check()
    verdict = learner.notebook.locator('[role="status"]:has-text("attention: not yet")')
    verdict.wait_for()
    assert "down the columns" in verdict.inner_text()
    for theme in THEMES:
        learner.choose_theme(theme)
        assert accessible.problems(learner.page) == []
        verdict.screenshot(path=artifacts / f"verdict_{theme}.png")
    stored = learner.save(CHAPTER)
    said = "\n".join(text for cell in code_cells(stored) for text in texts(cell))
    assert "attention   not yet" in said and "scores   not attempted yet" in said


def test_the_keyboard_alone_suffices(learner):
    """From the opened page to a passed check: walk with Shift+Enter, edit with Enter, leave with Escape."""
    learner.open(CHAPTER)
    learner.page.wait_for_function("() => document.activeElement.closest('.jp-Notebook')")
    active = learner.notebook.locator(".jp-Cell.jp-mod-active")
    for words in ("import", "Exercise 1", "def scores("):
        learner.page.keyboard.press("Shift+Enter")
        active.filter(has_text=words).wait_for()
    for key in ("Enter", "Control+End", "Shift+ArrowUp", "Shift+Home", "Delete"):
        learner.page.keyboard.press(key)
    learner.type_lines(["return query @ key.transpose(-2, -1)"])
    learner.page.keyboard.press("Shift+Enter")
    active.filter(has_text="checks.scores(scores)").wait_for()
    learner.page.keyboard.press("Shift+Enter")
    learner.notebook.locator('[role="status"]:has-text("scores: passed")').wait_for()
    learner.page.keyboard.press("Escape")
    learner.page.keyboard.press("ArrowDown")
    assert learner.notebook.locator(".jp-Cell.jp-mod-active").count() == 1
