"""nbgrader on a real course folder: release, collect, grade, give feedback, export."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT, load, notebook_paths

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e '.[teach]'")

NOTEBOOK = "01_single_head_attention.ipynb"
STUDENTS = {"unfilled": 0, "half": 3, "full": 7, "wrong": 0}
WRONG = {
    "scores": "def scores(query, key):\n    return query @ key\n",
    "softmax_rows": "def softmax_rows(scores):\n    return scores.softmax(1)\n",
    "attention": "def attention(query, key, value):\n    return None\n",
    "single_head": "class SingleHeadAttention:\n    pass\n",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course folder with one assignment and a submission of each student, graded."""
    root = tmp_path_factory.mktemp("course")
    (root / "exchange").mkdir(mode=0o777)
    os.chmod(root / "exchange", 0o777)
    (root / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        "c.CourseDirectory.course_id = 'attention'\n"
        f"c.CourseDirectory.root = {str(root)!r}\n"
        f"c.Exchange.root = {str(root / 'exchange')!r}\n"
        f"c.Exchange.cache = {str(root / 'cache')!r}\n",
        encoding="utf-8",
    )
    source = root / "source" / "heads"
    source.mkdir(parents=True)
    (source / NOTEBOOK).write_bytes((ROOT / "solutions" / NOTEBOOK).read_bytes())

    def nbgrader(*arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MHA_", "NBGRADER_"))}
        # nbgrader starts alembic by its name, as in an activated environment.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments], cwd=root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    nbgrader("generate_assignment", "heads", "--create")
    nbgrader("release_assignment", "heads")
    released = next((root / "exchange").rglob(NOTEBOOK))
    answers = {
        c.metadata.nbgrader.grade_id: c.source
        for c in load(ROOT / "solutions" / NOTEBOOK).cells
        if c.metadata.get("nbgrader", {}).get("solution")
    }
    filled = {"unfilled": {}, "half": {k: answers[k] for k in ("scores", "attention")}, "full": answers, "wrong": WRONG}
    for student, answer in filled.items():
        notebook = nbformat.read(released, as_version=4)
        for cell in notebook.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            cell.source = answer.get(grade_id, cell.source)
        folder = root / "submitted" / student / "heads"
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / NOTEBOOK)
    nbgrader("autograde", "heads", "--create")
    nbgrader("generate_feedback", "heads")
    nbgrader("export")
    return root


def test_the_release_holds_no_solution(course):
    released = nbformat.read(course / "release" / "heads" / NOTEBOOK, as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "BEGIN SOLUTION" not in text and "key.transpose" not in text
    assert text.count("raise NotImplementedError()") == 5


def test_points_are_those_that_were_earned(course):
    with (course / "grades.csv").open(encoding="utf-8") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {s: float(rows[s]["score"]) for s in STUDENTS} == STUDENTS
    assert all(float(rows[s]["max_score"]) == 7 for s in STUDENTS)


def test_feedback_names_the_mistake_and_shows_no_traceback_of_ours(course):
    text = (course / "feedback" / "wrong" / "heads" / NOTEBOOK.replace(".ipynb", ".html")).read_text(encoding="utf-8")
    for words in ("scores_key_not_transposed", "softmax_axis_counted_from_front", "returned_none", "not_a_class"):
        assert words in text
    assert "mha_lib/checks" not in text
    text = (course / "feedback" / "unfilled" / "heads" / NOTEBOOK.replace(".ipynb", ".html")).read_text(encoding="utf-8")
    assert "not attempted yet" in text


def blocks() -> list[str]:
    """Return the commands of the page for teachers, as printed."""
    return re.findall(r"(?s)```\n(.*?)```", (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8"))


def shell(commands: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MHA_", "NBGRADER_"))}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    return subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(os.name == "nt", reason="the page's commands are for a shell")
def test_the_first_commands_for_teachers_run_as_printed(tmp_path):
    commands = blocks()[0].replace("PATH/TO/COURSE", f"'{ROOT}'").replace("nbgrader release_assignment chapter1\n", "")
    done = shell(commands, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "attention" / "release" / "chapter1" / NOTEBOOK).is_file()


@pytest.mark.skipif(os.name == "nt", reason="the page's commands are for a shell")
def test_a_copied_cell_stops_nobody_else_and_a_deleted_check_comes_back(course):
    full = nbformat.read(course / "submitted" / "full" / "heads" / NOTEBOOK, as_version=4)
    for student in ("copied", "deleted"):
        notebook = nbformat.from_dict(full)
        marked = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in notebook.cells}
        if student == "copied":
            twin = nbformat.from_dict(marked["scores"])
            twin.id = "a-copy"
            notebook.cells.insert(3, twin)
        else:
            notebook.cells.remove(marked["check-single_head"])
        folder = course / "submitted" / student / "heads"
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / NOTEBOOK)
    loop = re.search(r"(?s)for learner.*?done\n", blocks()[1])[0].replace("chapter1", "heads")
    only = loop.replace("submitted/*/", "submitted/copied/ submitted/deleted/")
    assert shell(only, course).returncode == 0
    assert (course / "grade-by-hand.txt").read_text().split() == ["submitted/copied/"]
    assert shell("nbgrader export", course).returncode == 0
    with (course / "grades.csv").open(encoding="utf-8") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert float(rows["deleted"]["score"]) == 7


def test_unsolved_notebooks_pass_nothing(tmp_path):
    """As learners press "Validate"; one kernel runs all chapters, one after the other."""
    from nbgrader.validator import Validator

    chapters = [load(path) for path in notebook_paths("exercises")]
    for number, chapter in enumerate(chapters):
        for cell in chapter.cells:
            if "nbgrader" in cell.metadata:
                cell.metadata.nbgrader.grade_id = f"{number}-{cell.metadata.nbgrader.grade_id}"
    cells = [cell for chapter in chapters for cell in chapter.cells]
    joined = nbformat.v4.new_notebook(metadata=chapters[0].metadata, cells=cells)
    nbformat.write(joined, tmp_path / "all.ipynb")
    checks = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade")]
    failed = Validator().validate(str(tmp_path / "all.ipynb"))["failed"]
    assert len(failed) == len(checks)
    assert all(re.match(r"CheckFailed: \w+: not attempted yet", result["error"]) for result in failed)


def test_every_answer_cell_of_a_release_is_a_solution_cell():
    for path in notebook_paths("solutions"):
        for cell in load(path).cells:
            assert ("BEGIN SOLUTION" in cell.source) == bool(cell.metadata.get("nbgrader", {}).get("solution"))
