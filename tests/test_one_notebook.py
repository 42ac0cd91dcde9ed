"""pytest with the path of one notebook: the same circumstances as in the whole suite, and a word about what is red."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import ROOT
from tools.notebooks import execute, normalise


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of one notebook, executed with one thread, whose second cell prints a lie."""
    root = tmp_path_factory.mktemp("course")
    for name in ("conftest.py", "pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/nbval_sanitize.cfg"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "notebooks").mkdir()
    notebook = new_notebook(cells=[new_code_cell("import os\nprint(os.environ['OMP_NUM_THREADS'])"), new_code_cell("print('true')")])
    notebook = normalise(execute(notebook, root))
    notebook.cells[0].outputs[0].text, notebook.cells[1].outputs[0].text = "1\n", "false\n"
    nbformat.write(notebook, root / "notebooks" / "one.ipynb")
    return root


def test_a_notebook_alone(course):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS" and not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "notebooks/one.ipynb"]
    said = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True).stdout
    assert "1 failed, 1 passed" in said and "one.ipynb::Cell 1" in said, said
    assert "Other than stored: the output of 1 cell. If the new one is right: make notebooks, then git diff." in said
