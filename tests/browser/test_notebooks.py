"""Every notebook that a learner opens: it runs to its end, shuts nobody out, fits, and its links lead on."""

import pytest

from tests.browser.lab import THEMES
from tests.conftest import ROOT, code_cells, notebook_paths

accessible = pytest.importorskip("tests.browser.accessible", exc_type=ImportError, reason="axe is not installed: make env")

PATHS = [path.relative_to(ROOT).as_posix() for path in notebook_paths("notebooks", "exercises")]
# 640 is a window of 1280 at 200 % zoom, where a reader closes the side bar.
WIDTHS = (1280, 800, 640)
TOO_WIDE = """() => [...document.querySelectorAll('.jp-NotebookPanel :is(.jp-RenderedImage img, [role=status], table)')]
    .filter(e => e.getBoundingClientRect().right > e.closest('.jp-Cell').getBoundingClientRect().right + 1)
    .map(e => e.outerHTML.slice(0, 80))"""
SCALES = """() => [...document.querySelectorAll('.jp-NotebookPanel .jp-RenderedImage img')]
    .map(e => e.getBoundingClientRect().width / e.naturalWidth)"""


def take_picture(page, path):
    """Save the whole page, not only the part that a window shows."""
    size = page.viewport_size
    height = page.evaluate("document.querySelector('.jp-NotebookPanel .jp-WindowedPanel-outer').scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": height + 200})
    page.wait_for_timeout(200)
    page.screenshot(path=path)
    page.set_viewport_size(size)


@pytest.mark.parametrize("path", PATHS)
def test_it_runs_to_its_end_is_accessible_and_fits(learner, artifacts, path):
    learner.open(path)
    learner.run_all()
    for kind in ("error", "stderr"):
        shown = learner.notebook.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']")
        assert shown.count() == 0, shown.all_inner_texts()
    stored = learner.save(path)
    assert all(cell.execution_count for cell in code_cells(stored))
    assert not [o for cell in code_cells(stored) for o in cell.outputs if o.output_type == "error"]
    if path.startswith("exercises"):
        assert set(learner.verdicts().values()) == {"not attempted yet"}
    look_at(learner, artifacts / path.replace("/", "_").removesuffix(".ipynb"))


def look_at(learner, pictures):
    """Look at the page in both themes, in three widths, and keep pictures of it."""
    page = learner.page
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if width == 640:
            page.keyboard.press("Control+b")
        page.wait_for_timeout(300)
        assert page.evaluate(TOO_WIDE) == []
        for theme in THEMES if width > 640 else ():
            learner.choose_theme(theme)
            if width == WIDTHS[0]:
                assert accessible.problems(page) == []
            take_picture(page, pictures.with_name(f"{pictures.name}_{theme}_{width}.png"))
    # Enlarged to 200 %, no picture's letters are smaller than before.
    assert min(page.evaluate(SCALES), default=1) >= 0.5


def test_links_lead_through_the_course(learner):
    chapters = [path for path in PATHS if path.startswith("notebooks")]
    learner.open(chapters[0], kernel=False)
    assert learner.follow("chapter 1") == chapters[1]
    for number, path in enumerate(chapters[1:], 1):
        learner.open(path, kernel=False)
        exercise = path.replace("notebooks", "exercises")
        if exercise in PATHS:
            assert learner.follow(f"exercises {number}") == exercise
            assert learner.follow("here") == path
        if path != chapters[-1]:
            assert learner.follow(f"chapter {number + 1}") == chapters[number + 1]
