"""A learner updates the course with real git: whatever they wrote stays, wherever they wrote it, and whatever interrupts."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

import tools.update as module
from tests.conftest import ROOT, load
from tools.update import CannotUpdate, update

EXERCISE = "exercises/01_single_head_attention.ipynb"
OTHER = "exercises/02_scaling.ipynb"
CHAPTER = "notebooks/01_single_head_attention.ipynb"
FILES = (EXERCISE, OTHER, CHAPTER, EXERCISE.replace("exercises", "solutions"))
UPDATER = tuple(f"tools/{name}.py" for name in ("update", "carry", "first_edition", "kept", "repository"))
NOW = datetime(2030, 1, 2, 3, 4, 5)
SAVED = "saved/2030-01-02_03-04-05"
ANSWER = "def scores(query, key):\n    return query @ key.transpose(-2, -1)  # mine"
HELPER = "def turned(key):\n    return key.mT"
CALLS_HELPER = "def scores(query, key):\n    return query @ turned(key)"


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


def edit(path, change):
    notebook = load(path)
    change(notebook)
    nbformat.write(notebook, path)


def at(notebook, grade_id):
    return next(i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def answer(notebook, source=ANSWER, exercise="scores"):
    notebook.cells[at(notebook, exercise)].source = source


def source_of(path, grade_id):
    notebook = load(path)
    return notebook.cells[at(notebook, grade_id)].source


def texts(path):
    return [cell.source for cell in load(path).cells]


def ids_once(path):
    notebook = load(path)
    nbformat.validate(notebook)
    marks = [c.metadata["nbgrader"]["grade_id"] for c in notebook.cells if "nbgrader" in c.metadata]
    return len(marks) == len(set(marks))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    theirs = tmp_path_factory.mktemp("first") / "theirs"
    for name in FILES:
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, theirs / name)
    (theirs / ".gitignore").write_text("saved/\n")
    (theirs / "README.md").write_text("old\n")
    git(theirs, "init", "-q", "-b", "main")
    git(theirs, "config", "core.autocrlf", "false")
    git(theirs, "add", "-A")
    git(theirs, "commit", "-qm", "first")
    return theirs


@pytest.fixture
def copies(first, tmp_path):
    """The course as its authors have it, and a learner's clone."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    shutil.copytree(first, theirs)
    git(tmp_path, "clone", "-q", "-c", "core.autocrlf=false", str(theirs), str(mine))
    return theirs, mine


def publish(theirs, subject="second"):
    """A new version: other words above the exercises, another first cell of the chapter, a new README."""

    def change(notebook):
        notebook.cells[0].source += "\n\nNewer words."

    for name in (EXERCISE, OTHER, CHAPTER):
        edit(theirs / name, change)
    (theirs / "README.md").write_text(f"{(theirs / 'README.md').read_text()}new\n")
    git(theirs, "commit", "-qam", subject)


def is_new(mine, theirs):
    return "Newer words." in source_of(mine / EXERCISE, "intro") and (mine / "README.md").read_bytes() == (theirs / "README.md").read_bytes()


def test_answers_stay_and_the_rest_is_new(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    edit(mine / CHAPTER, lambda n: n.cells[0].metadata.update(collapsed=False))
    (mine / "exercises" / "notes.txt").write_text("mine")
    before = (mine / EXERCISE).read_bytes()
    publish(theirs)
    said = update(mine, NOW)
    assert f"{EXERCISE}: 1 answer stands in the new version" in said and SAVED in said
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER
    assert (mine / SAVED / EXERCISE).read_bytes() == before
    assert (mine / SAVED / CHAPTER).exists() and not (mine / SAVED / OTHER).exists()
    for name in (OTHER, CHAPTER, "README.md"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    assert (mine / "exercises" / "notes.txt").read_text() == "mine"
    want = load(theirs / EXERCISE)
    answer(want)
    assert texts(mine / EXERCISE) == [cell.source for cell in want.cells]
    assert git(mine, "rev-parse", "HEAD") == git(theirs, "rev-parse", "HEAD")
    assert git(mine, "status", "--porcelain", "--untracked-files=no") == f"M {EXERCISE}"


def test_again_and_again(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    assert update(mine, NOW).startswith("The course is up to date")
    for second in (6, 7):
        publish(theirs)
        update(mine, NOW.replace(second=second))
        assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER
    assert not (mine / ".git" / "course-update").exists()


# What a learner did, and what must then be found: in the exercise's own cell, and among all cells in this order.


def split(notebook):
    i = at(notebook, "scores")
    notebook.cells.insert(i + 1, copy.deepcopy(notebook.cells[i]))
    notebook.cells[i].source, notebook.cells[i + 1].source, notebook.cells[i + 1].id = HELPER, CALLS_HELPER, "half"


def stub_pasted_below(notebook):
    i = at(notebook, "scores")
    notebook.cells.insert(i + 1, copy.deepcopy(notebook.cells[i]))
    notebook.cells[i + 1].id = "pasted"
    notebook.cells[i].source = ANSWER


def stub_pasted_without_metadata(notebook):
    i = at(notebook, "scores")
    notebook.cells.insert(i + 1, new_code_cell(notebook.cells[i].source))
    notebook.cells[i].source = ANSWER


def merged_with_its_check(notebook):
    i = at(notebook, "check-scores")
    notebook.cells[i].source = f"{ANSWER}\n\n{notebook.cells[i].source}"
    del notebook.cells[i - 1]


def merged_under_the_answers_mark(notebook):
    i = at(notebook, "scores")
    notebook.cells[i].source = f"{ANSWER}\n\n{notebook.cells[i + 1].source}"
    del notebook.cells[i + 1]


def without_metadata(notebook):
    answer(notebook)
    notebook.cells[at(notebook, "scores")].metadata = {}


def without_metadata_and_id(notebook):
    i = at(notebook, "scores")
    notebook.cells[i] = new_code_cell(ANSWER)


def turned_into_markdown(notebook):
    i = at(notebook, "scores")
    cell = new_markdown_cell(ANSWER, metadata=notebook.cells[i].metadata, id=notebook.cells[i].id)
    notebook.cells[i] = cell


def helper_above(notebook):
    answer(notebook, CALLS_HELPER)
    notebook.cells.insert(at(notebook, "scores"), new_code_cell(HELPER))


def helper_on_top(notebook):
    answer(notebook, CALLS_HELPER)
    notebook.cells.insert(0, new_code_cell(HELPER))


def answered_below_the_stub(notebook):
    notebook.cells.insert(at(notebook, "scores") + 1, new_code_cell(ANSWER))


def stub_deleted(notebook):
    i = at(notebook, "scores")
    notebook.cells[i] = new_code_cell(f"import math\n{ANSWER}\n\nchecks.scores(scores)")
    del notebook.cells[i + 1]


def notes(notebook):
    notebook.cells.insert(at(notebook, "check-scores") + 1, new_markdown_cell("# My notes\n\n![a](attachment:a.png)", attachments={"a.png": {"image/png": "AA=="}}))


def mark_without_id(notebook):
    answer(notebook)
    notebook.cells[at(notebook, "scores")].metadata["nbgrader"] = {"solution": True}


def two_answers_in_one_cell(notebook):
    answer(notebook, f"{ANSWER}\n\ndef softmax_rows(scores):\n    return scores.softmax(-1)")
    del notebook.cells[at(notebook, "softmax_rows")]


LEARNERS = [
    (split, CALLS_HELPER, [HELPER, CALLS_HELPER]),
    (stub_pasted_below, ANSWER, [ANSWER]),
    (stub_pasted_without_metadata, ANSWER, [ANSWER]),
    (merged_with_its_check, None, [f"{ANSWER}\n\nchecks.scores(scores)"]),
    (merged_under_the_answers_mark, f"{ANSWER}\n\nchecks.scores(scores)", []),
    (without_metadata, ANSWER, [ANSWER]),
    (without_metadata_and_id, ANSWER, [ANSWER]),
    (turned_into_markdown, ANSWER, [ANSWER]),
    (helper_above, CALLS_HELPER, [HELPER, CALLS_HELPER]),
    (helper_on_top, CALLS_HELPER, [HELPER, CALLS_HELPER]),
    (answered_below_the_stub, None, [ANSWER, "checks.scores(scores)"]),
    (stub_deleted, f"import math\n{ANSWER}\n\nchecks.scores(scores)", []),
    (notes, None, ["checks.scores(scores)", "# My notes\n\n![a](attachment:a.png)"]),
    (mark_without_id, ANSWER, [ANSWER]),
    (two_answers_in_one_cell, f"{ANSWER}\n\ndef softmax_rows(scores):\n    return scores.softmax(-1)", []),
]


@pytest.mark.parametrize("committed", [False, True], ids=["", "committed"])
@pytest.mark.parametrize(("change", "exercise", "order"), LEARNERS, ids=[entry[0].__name__ for entry in LEARNERS])
def test_whatever_a_learner_wrote_is_carried_over(copies, change, exercise, order, committed):
    theirs, mine = copies
    edit(mine / EXERCISE, change)
    written = [text for text in texts(mine / EXERCISE) if text not in texts(ROOT / EXERCISE)]
    if committed:
        git(mine, "commit", "-qam", "my answers")
    publish(theirs)
    edit(theirs / EXERCISE, lambda n: answer(n, n.cells[at(n, "scores")].source.replace("Dot product", "The dot product")))
    git(theirs, "commit", "-qam", "another docstring")
    said = update(mine, NOW)
    found = texts(mine / EXERCISE)
    assert is_new(mine, theirs) and ids_once(mine / EXERCISE)
    assert all(found.count(text) == 1 for text in written) and "no place" not in said
    assert [text for text in found if text in order] == order
    if exercise is not None:
        assert source_of(mine / EXERCISE, "scores") == exercise
    last = [text for text in found if "def scores(" in text][-1]
    assert "NotImplementedError" not in last or change is notes
    assert "<<<<" not in (mine / EXERCISE).read_text(encoding="utf-8")
    if change is notes:
        assert any(cell.get("attachments") for cell in load(mine / EXERCISE).cells)
    if committed:
        assert git(mine, "log", "-1", "--format=%an %s", "HEAD^1") == "a my answers"
        assert git(mine, "rev-parse", "HEAD^2") == git(theirs, "rev-parse", "HEAD")
        assert git(mine, "status", "--porcelain") == "" and (mine / SAVED / EXERCISE).exists()
        publish(theirs, "third")
        update(mine, NOW.replace(second=6))
        assert all(texts(mine / EXERCISE).count(text) == 1 for text in written)


def test_a_cell_that_both_changed_stands_beside_the_new_one(copies):
    theirs, mine = copies
    edit(mine / CHAPTER, lambda n: n.cells[0].update(source=n.cells[0].source + "\n\nMy words."))
    edit(mine / EXERCISE, lambda n: n.cells[1].update(source=n.cells[1].source + "\nimport math"))
    publish(theirs)
    assert "1 cell of your own stands" in update(mine, NOW)
    assert "Newer words." in texts(mine / CHAPTER)[0] and "My words." in texts(mine / CHAPTER)[1]
    assert texts(mine / EXERCISE)[1].endswith("import math")


def test_an_answer_follows_its_exercise_to_another_notebook(copies):
    theirs, mine = copies
    moved = "task-scores", "scores", "check-scores"

    def change(notebook):
        answer(notebook, f"{CALLS_HELPER}\n    # {{math.pi}}")
        notebook.cells.insert(1, new_code_cell(f"import math\n\n{HELPER}"))
        notebook.cells.insert(at(notebook, "check-scores") + 1, new_markdown_cell("Mine, about scores."))

    edit(mine / EXERCISE, change)
    edit(mine / OTHER, lambda n: answer(n, "def score_std(d_k):\n    return d_k**0.5", "score_std"))
    cells = [c for c in load(theirs / EXERCISE).cells if c.metadata["nbgrader"]["grade_id"] in moved]
    edit(theirs / EXERCISE, lambda n: n.cells.__setitem__(slice(2, 5), []))
    edit(theirs / OTHER, lambda n: n.cells.__setitem__(slice(2, 2), cells))
    git(theirs, "commit", "-qam", "moved")
    said = update(mine, NOW)
    assert f"{EXERCISE}: your answer to scores went with its exercise to {OTHER}" in said and "no place" not in said
    found = texts(mine / OTHER)
    assert found.index(f"import math\n\n{HELPER}") < found.index(f"{CALLS_HELPER}\n    # {{math.pi}}") < found.index("Mine, about scores.")
    assert source_of(mine / OTHER, "scores").startswith(CALLS_HELPER) and ids_once(mine / OTHER)
    assert source_of(mine / OTHER, "score_std").endswith("d_k**0.5")
    assert f"import math\n\n{HELPER}" in texts(mine / EXERCISE)


def test_a_renamed_notebook_keeps_what_was_written(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, helper_above)
    git(theirs, "mv", EXERCISE, "exercises/01_one_head.ipynb")
    git(theirs, "commit", "-qm", "renamed")
    update(mine, NOW)
    assert not (mine / EXERCISE).exists() and ids_once(mine / "exercises/01_one_head.ipynb")
    assert [t for t in texts(mine / "exercises/01_one_head.ipynb") if t in (HELPER, CALLS_HELPER)] == [HELPER, CALLS_HELPER]


def test_what_has_no_place_any_more_is_said_and_saved(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    edit(mine / OTHER, lambda n: n.cells.pop())
    edit(theirs / EXERCISE, lambda n: n.cells.__setitem__(slice(2, 5), []))
    git(theirs, "rm", "-q", OTHER)
    git(theirs, "commit", "-qm", "fewer", "-a")
    said = update(mine, NOW)
    assert f"{EXERCISE}: scores has no place in the new version any more; it lies in {SAVED}/{EXERCISE}" in said
    assert f"{OTHER}: no longer part of the course; yours lies in {SAVED}" in said and not (mine / OTHER).exists()
    assert source_of(mine / SAVED / EXERCISE, "scores") == ANSWER and (mine / SAVED / OTHER).exists()


def test_a_notebook_of_ones_own_where_the_course_brings_one(copies):
    theirs, mine = copies
    new = "exercises/03_new.ipynb"
    shutil.copy(theirs / OTHER, mine / new)
    edit(mine / new, lambda n: answer(n, "def score_std(d_k):\n    return d_k**0.5", "score_std"))
    shutil.copy(theirs / OTHER, theirs / new)
    git(theirs, "add", "-A")
    git(theirs, "commit", "-qm", "third notebook")
    update(mine, NOW)
    assert source_of(mine / new, "score_std").endswith("d_k**0.5") and (mine / SAVED / new).exists()


@pytest.mark.parametrize("content", [b"{ half a notebook", b"\xff\xfe", b"[]", b'{"cells": 3}'])
def test_an_unreadable_notebook_is_kept_as_it_is(copies, content):
    theirs, mine = copies
    (mine / EXERCISE).write_bytes(content)
    publish(theirs)
    assert f"{EXERCISE}: yours could not be read; it lies in {SAVED}" in update(mine, NOW)
    assert (mine / SAVED / EXERCISE).read_bytes() == content
    assert (mine / EXERCISE).read_bytes() == (theirs / EXERCISE).read_bytes()


def test_a_notebook_that_jupyterlab_opens_is_read(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    raw = json.loads((mine / EXERCISE).read_bytes())
    raw["nbformat_minor"] = 4
    for cell in raw["cells"]:
        cell.pop("outputs", None)
    (mine / EXERCISE).write_text(json.dumps(raw))
    publish(theirs)
    update(mine, NOW)
    assert source_of(mine / EXERCISE, "scores") == ANSWER and ids_once(mine / EXERCISE)


# Interruptions


def state(folder):
    names = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".git" not in p.relative_to(folder).parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in names}


@pytest.fixture
def two_answers(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, helper_above)
    edit(mine / OTHER, lambda n: answer(n, "def score_std(d_k):\n    return d_k**0.5", "score_std"))
    publish(theirs)
    return theirs, mine


def steps_of(monkeypatch, mine, act):
    """Call act(number, name) before each file that is put in place and each call of git."""
    count = 0

    def counted(function, name):
        def call(*arguments, **named):
            nonlocal count
            count += 1
            act(count, name(*arguments))
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(module.os, "replace", counted(os.replace, lambda part, path: Path(path).name))
    monkeypatch.setattr(module, "git", counted(module.git, lambda root, *a: f"git {a[0]}"))


def test_whatever_raises_leaves_everything_as_it_was(two_answers, monkeypatch):
    theirs, mine = two_answers
    before = state(mine)
    seen, stop = [], 0

    def act(number, name):
        if number == stop:
            raise OSError(28, "No space left on device", name)
        seen.append(name)

    monkeypatch.setattr(module, "ROOT", mine)
    while True:
        stop, seen[:] = stop + 1, []
        with monkeypatch.context() as patch:
            steps_of(patch, mine, act)
            try:
                update(mine, NOW)
                break
            except CannotUpdate as reason:
                assert "No space left" in str(reason)
            except OSError:
                assert seen[-1:] != ["git reset"]
        left = {name: data for name, data in state(mine).items() if not name.startswith("saved") and not name.endswith(".part")}
        assert left == before and git(mine, "status", "--porcelain", "--untracked-files=no").count("M") == 2
    assert stop > 25 and is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == CALLS_HELPER


KILLED = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
import tools.update as module

folder, at, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
def watched(function, name):
    def call(*arguments, **named):
        global left
        left -= name(*arguments) == at
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call

module._put = watched(module._put, lambda *a: "put")
module.git = watched(module.git, lambda root, *a: a[0])
module.update(Path(folder), datetime.now())
"""


def kill_in_the_middle(mine, at, count):
    command = [sys.executable, "-c", KILLED, str(mine), at, str(count)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")


@needs_kill
@pytest.mark.parametrize("committed", [False, True], ids=["", "committed"])
@pytest.mark.parametrize(("at", "count"), [("cat-file", 3), ("put", 1), ("put", 2), ("put", 3), ("put", 4), ("reset", 1)])
def test_a_killed_update_is_finished_by_the_next(two_answers, at, count, committed):
    theirs, mine = two_answers
    if committed:
        git(mine, "commit", "-qam", "mine")
    assert kill_in_the_middle(mine, at, count) == -signal.SIGKILL
    for path, exercise, text in ((EXERCISE, "scores", CALLS_HELPER), (OTHER, "score_std", "def score_std(d_k):\n    return d_k**0.5")):
        assert source_of(mine / path, exercise) == text
    said = update(mine, NOW)
    assert ("interrupted" in said) == (at != "cat-file")
    assert f"{EXERCISE}: 1 answer and 1 cell of your own stand in the new version" in said
    assert is_new(mine, theirs) and texts(mine / EXERCISE).count(HELPER) == 1
    assert source_of(mine / OTHER, "score_std").endswith("d_k**0.5")
    assert git(mine, "rev-parse", "HEAD^2" if committed else "HEAD") == git(theirs, "rev-parse", "HEAD")
    assert update(mine, NOW).startswith("The course is up to date")


@needs_kill
def test_git_pull_after_a_kill_loses_nothing(two_answers):
    theirs, mine = two_answers
    kill_in_the_middle(mine, "put", 3)
    git(mine, "stash", "-q")
    publish(theirs, "third")
    git(mine, "pull", "-q")
    git(mine, "checkout", "-q", "stash@{0}", "--", "exercises")
    publish(theirs)
    said = update(mine, NOW)
    assert "An earlier update was interrupted, and you went on with git since" in said
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == CALLS_HELPER and HELPER in texts(mine / EXERCISE)


@needs_kill
def test_what_was_written_after_a_kill_stays_too(two_answers):
    theirs, mine = two_answers
    kill_in_the_middle(mine, "put", 3)
    for path, exercise in ((EXERCISE, "softmax_rows"), (OTHER, "stable_softmax")):
        edit(mine / path, lambda n, exercise=exercise: answer(n, f"def {exercise}(scores):\n    return 'later'", exercise))
    later = (mine / OTHER).read_bytes()
    said = update(mine, NOW)
    assert f"{OTHER}: changed since then; that version lies in {SAVED}" in said
    assert (mine / SAVED / OTHER).read_bytes() == later and is_new(mine, theirs)
    assert source_of(mine / EXERCISE, "scores") == CALLS_HELPER and HELPER in texts(mine / EXERCISE)
    for path, exercise in ((EXERCISE, "softmax_rows"), (OTHER, "stable_softmax")):
        assert source_of(mine / path, exercise).endswith("'later'")
        assert "Newer words." in texts(mine / path)[0]


# Where the course comes from


def test_git_is_read_in_utf_8_whatever_the_locale(copies):
    theirs, mine = copies
    for name in ("exercises/01_Lösung.ipynb", "exercises/02_Lösung.ipynb"):
        shutil.copy(mine / EXERCISE, mine / name)
        git(mine, "add", name)
    edit(mine / EXERCISE, answer)
    publish(theirs, "Übung 1 – “neu”")
    for name in UPDATER:
        (mine / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, mine / name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    environment |= {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-X", "utf8=0", "tools/update.py"], cwd=mine, env=environment, capture_output=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER
    assert (mine / "exercises/01_Lösung.ipynb").exists()


def test_without_git_one_sentence(copies, tmp_path):
    mine = copies[1]
    (tmp_path / "empty").mkdir()
    for name in UPDATER:
        (mine / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, mine / name)
    environment = os.environ | {"PATH": str(tmp_path / "empty")}
    done = subprocess.run([sys.executable, "tools/update.py"], cwd=mine, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr
    assert done.stdout == "There is no git on this machine, and updates come through git. Install it, then update again.\n"


def tracks_the_local_main(mine, theirs):
    git(mine, "switch", "-qc", "work", "--track", "main")


def own_branch(mine, theirs):
    git(mine, "switch", "-qc", "work", "--no-track")


def fork_with_upstream(mine, theirs):
    git(mine.parent, "clone", "-q", "--bare", str(mine), "fork.git")
    git(mine, "remote", "rename", "origin", "upstream")
    git(mine, "remote", "add", "origin", str(mine.parent / "fork.git"))
    git(mine, "fetch", "-q", "origin")
    git(mine, "branch", "-q", "--set-upstream-to", "origin/main")


def rewritten(mine, theirs):
    git(theirs, "commit", "-q", "--amend", "-m", "first, again")


def begun_anew(mine, theirs):
    git(theirs, "switch", "-q", "--orphan", "anew")
    git(theirs, "checkout", "-q", "main", "--", ".")
    git(theirs, "commit", "-qm", "all in one")
    git(theirs, "branch", "-qM", "main")


def rewritten_twice(mine, theirs):
    git(theirs, "commit", "-q", "--amend", "-m", "first, again")
    git(mine, "fetch", "-q")


def stuck_remote_branch(mine, theirs):
    git(mine, "branch", "--unset-upstream")


@pytest.mark.parametrize("arrange", [tracks_the_local_main, own_branch, fork_with_upstream, rewritten, begun_anew, rewritten_twice, stuck_remote_branch])
def test_the_course_is_found(copies, arrange):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    arrange(mine, theirs)
    branch = git(mine, "branch", "--show-current")
    publish(theirs)
    update(mine, NOW)
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER
    assert git(mine, "branch", "--show-current") == branch
    assert git(mine, "rev-parse", "HEAD") == git(theirs, "rev-parse", "HEAD")


def change_readme(mine, theirs):
    (mine / "README.md").write_text("my own\n")


def commit_readme(mine, theirs):
    change_readme(mine, theirs)
    git(mine, "commit", "-qam", "my own")


def detach(mine, theirs):
    git(mine, "switch", "-q", "--detach")


def half_merged(mine, theirs):
    git(mine, "commit", "-qam", "mine")
    edit(theirs / EXERCISE, lambda n: answer(n, "def scores(q, k):\n    '''Other words.'''\n    raise NotImplementedError()"))
    git(theirs, "commit", "-qam", "theirs")
    with pytest.raises(subprocess.CalledProcessError):
        git(mine, "pull", "-q", "--no-rebase")


def unrelated(mine, theirs):
    git(mine.parent, "init", "-q", "-b", "main", "another")
    git(mine.parent / "another", "commit", "-q", "--allow-empty", "-m", "another")
    git(mine, "remote", "set-url", "origin", str(mine.parent / "another"))


def own_file_in_the_way(mine, theirs):
    (mine / "new.md").write_text("mine")
    (theirs / "new.md").write_text("theirs")
    git(theirs, "add", "new.md")


def locked(mine, theirs):
    (mine / ".git" / "index.lock").write_text("")


@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (change_readme, "You and the course both changed README.md.*git checkout .* -- README.md"),
        (commit_readme, "You and the course both changed README.md"),
        (lambda mine, theirs: git(mine, "remote", "remove", "origin"), "does not know where the course comes from.*git remote add origin"),
        (lambda mine, theirs: git(mine, "remote", "set-url", "origin", "nowhere"), "git fetch said:.*nowhere"),
        (detach, "on no branch.*git switch"),
        (half_merged, "half done.*git merge --abort"),
        (unrelated, "nothing in common.*git remote add upstream"),
        (own_file_in_the_way, "brings new.md.*Rename yours"),
        (locked, "Another git is at work.*index.lock"),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_changes(copies, disturb, words):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    disturb(mine, theirs)
    publish(theirs)
    before = state(mine)
    with pytest.raises(CannotUpdate, match=f"(?s){words}"):
        update(mine, NOW)
    assert state(mine) == before and not (mine / "saved").exists()


def test_the_advice_on_a_file_that_both_changed_works(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    commit_readme(mine, theirs)
    publish(theirs)
    with pytest.raises(CannotUpdate) as reason:
        update(mine, NOW)
    git(mine, *str(reason.value).split("git ")[1].split(",")[0].split())
    update(mine, NOW)
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER


def test_a_half_done_merge_is_taken_back_and_the_answers_carried_over(copies):
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    half_merged(mine, theirs)
    git(mine, "merge", "--abort")
    publish(theirs)
    update(mine, NOW)
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER


def test_a_file_that_only_the_learner_changed_is_left_alone(copies):
    theirs, mine = copies
    (mine / ".gitignore").write_text("saved/\nmine/\n")
    publish(theirs)
    update(mine, NOW)
    assert is_new(mine, theirs) and (mine / ".gitignore").read_text() == "saved/\nmine/\n"


def test_a_fork_that_is_behind_says_where_it_looked(copies):
    theirs, mine = copies
    git(mine.parent, "clone", "-q", "--bare", str(mine), "fork.git")
    git(mine, "remote", "set-url", "origin", str(mine.parent / "fork.git"))
    publish(theirs)
    said = update(mine, NOW)
    assert f"nothing newer lies at {mine.parent / 'fork.git'} (main)" in said and "git remote add upstream ADDRESS" in said
    git(mine, "remote", "add", "upstream", str(theirs))
    update(mine, NOW)
    assert is_new(mine, theirs)


def test_a_pushed_branch_is_told_that_main_is_newer(copies):
    theirs, mine = copies
    own_branch(mine, theirs)
    git(mine, "push", "-q", "--set-upstream", "origin", "work")
    publish(theirs)
    said = update(mine, NOW)
    assert "origin/main is newer" in said
    git(mine, *said.split("git ")[1].split(",")[0].split())
    update(mine, NOW)
    assert is_new(mine, theirs)


@pytest.mark.parametrize("inside", [False, True])
def test_a_copy_without_git_is_told_to_clone(copies, tmp_path, inside):
    theirs, mine = copies
    outer = tmp_path / "outer"
    shutil.copytree(mine, outer / "course", ignore=shutil.ignore_patterns(".git"))
    words = "came without git"
    if inside:
        git(outer, "init", "-q")
        git(outer, "add", "-A")
        git(outer, "commit", "-qm", "my things")
        words = f"inside another repository, {outer}"
    before = state(outer)
    with pytest.raises(CannotUpdate, match=f"{words}.*Clone the course"):
        update(outer / "course", NOW)
    assert state(outer) == before


def test_git_gives_its_own_reason(copies, monkeypatch):
    """As for a folder of another owner."""
    mine = copies[1]
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(CannotUpdate, match="(?s)dubious ownership.*safe.directory"):
        update(mine, NOW)


def test_a_clone_behind_a_symbolic_link(copies, tmp_path):
    theirs, mine = copies
    (tmp_path / "link").symlink_to(mine, target_is_directory=True)
    edit(mine / EXERCISE, answer)
    publish(theirs)
    update(tmp_path / "link", NOW)
    assert is_new(mine, theirs) and source_of(mine / EXERCISE, "scores") == ANSWER


def test_commits_without_a_name(copies, monkeypatch):
    """A learner whose git knows no name committed with one given once."""
    theirs, mine = copies
    edit(mine / EXERCISE, answer)
    git(mine, "commit", "-qam", "mine")
    publish(theirs)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("EMAIL", "")
    git(mine, "config", "user.useConfigOnly", "true")
    update(mine, NOW)
    assert is_new(mine, theirs) and git(mine, "status", "--porcelain") == ""


class TestFirstEdition:
    """That edition's own update put answers back by their exercise, and saved the rest without placing it."""

    @pytest.fixture
    def updated(self, copies):
        """A learner's clone after that update: the answer to scores is back; another, and a cell of their own, lie in saved/."""
        theirs, mine = copies
        (theirs / "tools").mkdir()
        (theirs / "tools" / "carry.py").write_text("")
        moved = {}

        def take_out(notebook):
            moved["cell"] = notebook.cells.pop(at(notebook, "attention"))

        edit(theirs / EXERCISE, take_out)
        edit(theirs / OTHER, lambda notebook: notebook.cells.insert(2, moved["cell"]))
        git(theirs, "add", "-A")
        publish(theirs)

        def write(notebook):
            answer(notebook)
            answer(notebook, "def attention():\n    return 1  # mine", "attention")
            notebook.cells.insert(2, new_code_cell("note = 1"))

        edit(mine / EXERCISE, write)
        saved = mine / "saved" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S") / EXERCISE
        saved.parent.mkdir(parents=True)
        shutil.copy(mine / EXERCISE, saved)
        git(mine, "checkout", "HEAD", "--", "exercises")
        git(mine, "pull", "-q", "--ff-only")
        edit(mine / EXERCISE, answer)
        return mine, saved

    def test_the_next_update_places_what_that_one_left(self, updated):
        mine, saved = updated
        said = update(mine, NOW)
        assert "The update of the first edition left some of your cells behind." in said
        assert f"{EXERCISE}: your answer to attention went with its exercise to {OTHER}." in said
        assert source_of(mine / EXERCISE, "scores") == ANSWER
        assert source_of(mine / OTHER, "attention") == "def attention():\n    return 1  # mine"
        assert texts(mine / EXERCISE).count("note = 1") == 1 and ids_once(mine / EXERCISE) and ids_once(mine / OTHER)

    def test_it_happens_once(self, updated):
        mine, saved = updated
        update(mine, NOW)
        before = (mine / OTHER).read_bytes()
        assert "Nothing was changed." in update(mine, NOW)
        assert (mine / OTHER).read_bytes() == before

    def test_what_was_written_since_stays(self, updated):
        mine, saved = updated
        edit(mine / EXERCISE, lambda notebook: answer(notebook, "def scores():\n    return 2  # later"))
        edit(mine / OTHER, lambda notebook: answer(notebook, "def attention():\n    return 2  # later", "attention"))
        here = {name: (mine / name).read_bytes() for name in (EXERCISE, OTHER)}
        update(mine, NOW)
        assert "def scores():\n    return 2  # later" in texts(mine / EXERCISE) and "note = 1" in texts(mine / EXERCISE)
        assert "def attention():\n    return 2  # later" in texts(mine / OTHER)
        for name, data in here.items():
            assert (mine / SAVED / name).read_bytes() == data and ids_once(mine / name)

    def test_a_later_edition_has_nothing_left(self, copies):
        theirs, mine = copies
        assert "Nothing was changed." in update(mine, NOW)
