"""The form of every notebook: what a reader, nbval, nbgrader and another machine rely on."""

import ast
import re

import pytest

from mha_lib import checks
from mha_lib.checks.exercise import Exercise
from tests.conftest import ROOT, code_cells, each_notebook, load, notebook_paths, texts

IGNORED = "nbval-ignore-output"


def headings(notebook) -> list[tuple[int, str]]:
    return [
        (len(marks), title.strip())
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for marks, title in re.findall(r"(?m)^(#{1,6}) (.+)$", re.sub(r"(?s)```.*?```", "", cell.source))
    ]


def shows_picture(cell) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@each_notebook()
def test_kernel_and_metadata(path):
    notebook = load(path)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"nbgrader", "tags"}
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))


@each_notebook()
def test_executed_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in code_cells(load(path))]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook()
def test_compared_outputs_hold_nothing_of_a_machine(path):
    for cell in code_cells(load(path)):
        for text in texts(cell):
            assert "Traceback" not in text
            assert not re.search(r"/(root|home|work|tmp|Users)/|[A-Z]:\\", text), text
            if IGNORED in cell.metadata.get("tags", []):
                continue
            assert not re.search(r"\b0x[0-9a-f]{6,}", text), text
            assert not re.search(r"\b\d+\.\d+\.\d+\b", text), text
            assert not re.search(r"\bcuda\b|device='", text), text
            assert not re.search(r"\d\.\d{7,}", text), text


@each_notebook()
def test_pictures_are_png_and_nothing_else(path):
    for cell in code_cells(load(path)):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            assert "image/svg+xml" not in output.get("data", {})
            assert not any("<Figure size" in text and not shows_picture(cell) for text in texts(cell))


@each_notebook()
def test_a_text_follows_every_picture(path):
    cells = load(path).cells
    for cell, after in zip(cells, [*cells[1:], None]):
        if cell.cell_type == "code" and shows_picture(cell):
            assert after is not None and after.cell_type == "markdown" and after.source.strip()


@each_notebook("notebooks")
def test_a_question_stands_before_every_picture(path):
    cells = load(path).cells
    for before, cell in zip(cells, cells[1:]):
        if cell.cell_type == "code" and shows_picture(cell):
            assert before.cell_type == "markdown" and "?" in before.source, cell.source


@each_notebook()
def test_code_fences_compile(path):
    for cell in load(path).cells:
        if cell.cell_type == "markdown":
            assert cell.source.count("```") % 2 == 0
            for code in re.findall(r"(?s)```python\n(.*?)```", cell.source):
                ast.parse(code)


@each_notebook()
def test_links_resolve(path):
    for cell in load(path).cells:
        if cell.cell_type != "markdown":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
            if target.startswith(("http://", "https://")):
                continue
            file, _, anchor = target.partition("#")
            goal = (path.parent / file).resolve() if file else path
            assert goal.is_file(), target
            if anchor:
                anchors = [title.replace(" ", "-") for _, title in headings(load(goal))]
                assert anchor in anchors, target


@each_notebook()
def test_headings_are_in_order(path):
    levels = [level for level, _ in headings(load(path))]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))


@each_notebook()
def test_tables_have_headers(path):
    for cell in load(path).cells:
        if cell.cell_type == "markdown":
            rows = [line for line in cell.source.splitlines() if line.startswith("|")]
            assert not rows or re.fullmatch(r"[|\-: ]+", rows[1])


@each_notebook()
def test_code_fits_a_window_of_1280(path):
    for cell in code_cells(load(path)):
        for line in cell.source.splitlines():
            assert len(line) <= 104, line


@each_notebook("notebooks")
def test_steps_are_small(path):
    notebook = load(path)
    code = code_cells(notebook)
    assert len(code) <= 25
    words = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 15, cell.source
            words = 0
        else:
            words += len(re.sub(r"\]\([^)]*\)", "]", cell.source).split())
            if cell is not notebook.cells[-1] and "| --" not in cell.source and "|---" not in cell.source:
                assert words <= 90, (words, cell.source)


@each_notebook("notebooks")
def test_a_chapter_shows_pictures_or_tables(path):
    if path.name.startswith("00"):
        return
    cells = code_cells(load(path))
    tables = [c for c in cells if any(len(re.findall(r"(?m)^.*\d.*$", text)) >= 3 for text in texts(c))]
    assert len({id(c) for c in cells if shows_picture(c)} | {id(c) for c in tables}) >= 2


@each_notebook("notebooks")
def test_a_chapter_says_how_long_it_takes(path):
    if path.name >= "09":
        pytest.skip("part one says it at its head")
    assert re.search(r"\d+ minutes", load(path).cells[0].source)


@each_notebook("notebooks")
def test_the_end_says_what_next(path):
    last = load(path).cells[-1].source
    assert "## What you can do now" in last and "Where to read more" in last
    assert ".ipynb)" in last


@each_notebook("exercises")
def test_an_exercise_is_complete(path):
    notebook = load(path)
    ids = [cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata]
    assert len(ids) == len(set(ids))
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    tasks = re.split(r"(?m)^## Exercise \d", text)[1:]
    assert len(tasks) >= 4
    for text in tasks:
        assert "<details><summary>" in text and "</details>" in text
        assert re.search(r"\*(Easy|Medium|Hard), \d+ minutes\.\*", text)
    answers = [i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("solution")]
    assert len(answers) == len(tasks)
    for i in answers:
        check = notebook.cells[i + 1]
        assert check.metadata.nbgrader.grade and check.metadata.nbgrader.locked
        assert check.metadata.nbgrader.points > 0
        assert check.source.startswith("checks.")
        assert "BEGIN SOLUTION" not in notebook.cells[i].source


@pytest.mark.parametrize("folder, word", [("exercises", "not attempted yet"), ("solutions", "passed")])
def test_every_check_answers_as_its_folder_says(folder, word):
    paths = notebook_paths(folder)
    assert paths
    for path in paths:
        verdicts = [texts(c) for c in code_cells(load(path)) if c.metadata.get("nbgrader", {}).get("grade")]
        assert len(verdicts) >= 4
        for plain in verdicts:
            assert any(re.match(rf"\w+   {word}\n", text) for text in plain), plain


def test_solutions_and_exercises_hold_the_same_notebooks():
    assert [p.name for p in notebook_paths("solutions")] == [p.name for p in notebook_paths("exercises")]


def all_exercises():
    return [x for x in vars(checks).values() if isinstance(x, Exercise)]


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda e: e.name)
def test_read_again_names_a_heading_that_exists(exercise):
    for text in {exercise.read, *(m.read for m in exercise.mistakes if m.read)}:
        number, title = re.fullmatch(r"notebook (\d\d), “(.+)”", text).groups()
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        assert title in [t for _, t in headings(load(path))], text


def test_every_check_is_used_in_an_exercise():
    used = {
        name
        for path in notebook_paths("exercises")
        for cell in code_cells(load(path))
        for name in re.findall(r"(?m)^checks\.(\w+)\(", cell.source)
    }
    assert {e.name for e in all_exercises()} <= used
