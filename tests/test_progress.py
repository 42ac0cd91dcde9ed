"""mha_lib.progress: what a learner is told about where they stand."""

import os
import subprocess
import sys

import nbformat
import pytest

from mha_lib import checks, progress
from mha_lib.checks.result import session
from tests.conftest import ROOT, load

EXERCISE = ROOT / "exercises" / "01_single_head_attention.ipynb"


@pytest.fixture
def answered(tmp_path):
    """Return a function that writes chapter 1 with some answers in it and gives its path."""

    def write(**answers):
        notebook = load(EXERCISE)
        for cell in notebook.cells:
            cell.source = answers.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
        path = tmp_path / EXERCISE.name
        nbformat.write(notebook, path)
        return path

    return write


RIGHT = "def scores(query, key):\n    return query @ key.mT\n"
WRONG = "def softmax_rows(scores):\n    return scores.softmax(-2)\n"
BROKEN = "def attention(query, key, value)\n    return 1\n"


def run(*arguments):
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-m", "mha_lib.progress", *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_each_kind_of_answer_is_reported(answered):
    done = run(answered(scores=RIGHT, softmax_rows=WRONG, attention=BROKEN))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr
    assert "[#...] 1 of 4" in lines[0]
    assert [line.split(maxsplit=1) for line in lines[1:5]] == [
        ["scores", "passed"],
        ["softmax_rows", "not yet: Your columns sum to 1, not your rows: the queries share out each key."],
        ["attention", lines[3].split(maxsplit=1)[1]],
        ["single_head", "not attempted yet"],
    ]
    assert "could not run" in lines[3] and "expected ':'" in lines[3] and "line 1" in lines[3] and ".py" not in lines[3]
    assert "next:" in lines[-1] and "Exercise 1.2 · Softmax, by hand" in lines[-1]


def test_strict_fails_unless_everything_passed(capsys):
    assert progress.main(["--strict", str(EXERCISE)]) == 1
    assert progress.main(["--strict", str(ROOT / "solutions" / EXERCISE.name)]) == 0
    assert "Everything passed." in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, words",
    [(None, "no such file"), ("not json", "no notebook that can be read"), ('{"cells": 3}', "no notebook that can be read")],
)
def test_a_broken_notebook_is_reported(tmp_path, content, words):
    path = tmp_path / "bad.ipynb"
    if content is not None:
        path.write_text(content)
    chapter = progress.run(path)
    assert words in chapter.problem
    text = progress.report([chapter])
    assert "could not run" in text and f"next: mend {path}" in text and "Traceback" not in text


def test_a_notebook_whose_kernel_dies_is_reported(answered):
    chapter = progress.run(answered(scores="import os\nos._exit(1)"))
    assert [s.status for s in chapter.steps] == ["broken", "not attempted", "not attempted", "not attempted"]
    assert "Traceback" not in progress.report([chapter]) and "kernel" in chapter.steps[0].why


def test_printing_without_end_is_cut_and_named(answered):
    chapter = progress.run(answered(scores="while True:\n    print('x' * 1000)", softmax_rows="def softmax_rows(scores):\n    return scores.softmax(-1)"))
    assert [s.status for s in chapter.steps[:2]] == ["broken", "passed"], chapter


def test_replaced_printing_does_not_matter(answered):
    chapter = progress.run(answered(scores=RIGHT + "\nimport io, sys\nprint = 5\nsys.stdout = io.StringIO()"))
    assert chapter.steps[0].status == "passed"


def test_what_is_asked_comes_from_the_course(tmp_path):
    notebook = load(ROOT / "solutions" / EXERCISE.name)
    notebook.cells = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") not in ("check-attention", "check-single_head")]
    path = tmp_path / EXERCISE.name
    nbformat.write(notebook, path)
    assert progress.main(["--strict", str(path)]) == 1
    statuses = {s.check: s.status for s in progress.run(path).steps}
    assert statuses["scores"] == "passed" and statuses["attention"] != "passed" and statuses["single_head"] != "passed"


def test_a_star_that_no_shell_expanded_and_a_folder(tmp_path, capsys):
    for word in (tmp_path / "*.ipynb", tmp_path):
        assert progress.main(["--strict", str(word)]) == 1
        assert "Traceback" not in capsys.readouterr().out


def test_here_counts_what_ran_in_this_kernel(capsys):
    session.clear()
    checks.scores(lambda q, k: q @ k.mT)
    checks.softmax_rows(lambda s: s.softmax(-2))
    progress.here(1)
    out = capsys.readouterr().out
    assert "[#...] 1 of 4" in out and "softmax_rows  not yet: Your columns sum to 1" in out
    with pytest.raises(ValueError, match="no exercises for chapter 99; there are for 1, 2, 3, 4, 5, 6"):
        progress.here(99)


def test_chapters_name_every_check_once():
    listed = [e for chapter in checks.CHAPTERS.values() for e in chapter]
    assert sorted(e.name for e in listed) == sorted({e.name for e in listed})
    assert all(getattr(checks, e.name) is e for e in listed)
