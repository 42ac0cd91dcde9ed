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
}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Return a function that makes a course of one notebook with one cell."""

    def make(source):
        (tmp_path / "notebooks").mkdir()
        (tmp_path / "tests").mkdir()
        shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", tmp_path / "tests")
        notebook = normalise(execute(new_notebook(cells=[new_code_cell(source)]), tmp_path / "notebooks"))
        nbformat.write(notebook, tmp_path / "notebooks" / "one.ipynb")
        for folder in ("solutions", "exercises"):
            (tmp_path / folder).mkdir()
        monkeypatch.setattr(robust, "ROOT", tmp_path)

    return make


@pytest.mark.parametrize(
    ("leak", "circumstance"),
    [
        ("environment", robust.Circumstance("environment", {"MHA_LEAK": "yes"})),
        ("place", robust.Circumstance("alone", alone=True)),
        ("state", robust.Circumstance("twice", change=robust.twice)),
    ],
)
def test_what_depends_on_it_is_seen(course, leak, circumstance):
    course(LEAKS[leak])
    verdict, why = robust.judge(circumstance)
    assert verdict == "NO" and "one.ipynb" in why


def test_what_depends_on_nothing_agrees(course):
    course("print(1 + 1)")
    for circumstance in (robust.Circumstance("alone", alone=True), robust.Circumstance("twice", change=robust.twice, times=2)):
        assert robust.judge(circumstance) == ("yes", "")


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
