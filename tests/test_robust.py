"""make robust sees what differs, and says what it could not try."""

import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import ROOT
from tools import robust
from tools.notebooks import execute, normalise

LEAKS = {
    "environment": "import os\nprint(os.environ.get('MHA_LEAK'))",
    "place": "import os\nprint(os.path.basename(os.getcwd()))",
    "state": "import builtins\nbuiltins.count = getattr(builtins, 'count', 0) + 1\nprint(builtins.count)",
    "nothing": "print(1 + 1)",
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A course of one notebook: three cells that each depend on something else, and one that depends on nothing."""
    root = tmp_path_factory.mktemp("course")
    for folder in ("notebooks", "solutions", "exercises", "tests"):
        (root / folder).mkdir()
    shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", root / "tests")
    notebook = normalise(execute(new_notebook(cells=[new_code_cell(s) for s in LEAKS.values()]), root / "notebooks"))
    nbformat.write(notebook, root / "notebooks" / "one.ipynb")
    return root


@pytest.fixture
def course(executed, monkeypatch):
    """That course in place of ours."""
    monkeypatch.setattr(robust, "ROOT", executed)


@pytest.mark.parametrize(
    ("circumstance", "cell"),
    [
        (robust.Circumstance("environment", {"MHA_LEAK": "yes"}), "notebooks/one.ipynb::Cell 0"),
        (robust.Circumstance("place", alone=True), "notebooks/one/one.ipynb::Cell 1"),
        # Cells 0 to 7 are the four, each with its copy behind it.
        (robust.Circumstance("state", change=robust.twice), "notebooks/one.ipynb::Cell 5"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_depends_on_it_is_seen_and_nothing_else(course, circumstance, cell):
    assert robust.judge(circumstance) == ("NO", cell)


def test_where_nothing_is_changed_all_agree_again_and_again(course):
    assert robust.judge(robust.Circumstance("as it is", times=2)) == ("yes", "")


def test_a_later_run_that_differs_is_named(course, monkeypatch):
    answers = iter(["", "notebooks/one.ipynb::Cell 0"])
    monkeypatch.setattr(robust, "validate", lambda *_: next(answers))
    assert robust.judge(robust.Circumstance("flaky", times=5)) == ("NO", "run 2: notebooks/one.ipynb::Cell 0")


def test_what_cannot_be_had_is_said():
    def nowhere():
        return robust.find_python("2.3")

    assert robust.judge(robust.Circumstance("old", interpreter=nowhere)) == ("not tried", "there is no Python 2.3 here")


def test_the_oldest_releases_are_those_of_the_project():
    assert robust.lowest("torch") == "torch==2.6.*" and robust.lowest("matplotlib") == "matplotlib==3.8.*"
    with pytest.raises(ValueError, match="tensorflow is not among"):
        robust.lowest("tensorflow")


def test_a_word_that_fits_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        robust.main(["nothing-such"])
    assert "--list shows their names" in capsys.readouterr().err
    assert robust.main(["--list", "thread"]) == 0
    assert capsys.readouterr().out.split("\n")[:3] == ["1 thread", "2 threads", "4 threads"]
