"""tools/notebooks.py: regenerating changes no byte, and a broken notebook is left as it was."""

import nbformat
import pytest

from tests.conftest import ROOT, each_notebook, load
from tools import notebooks as tool


@each_notebook()
def test_normalising_changes_no_byte(path):
    assert tool.dumps(tool.normalise(load(path))) == path.read_text(encoding="utf-8")


@each_notebook("solutions")
def test_deriving_again_changes_no_byte(path):
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e '.[teach]'")
    derived, stored = tool.clear_solutions(load(path)), load(tool.exercise_path(path))
    for cell, kept in zip(derived.cells, stored.cells):
        if cell.cell_type == "code":  # what the cells print is compared by nbval
            cell.outputs, cell.execution_count = kept.outputs, kept.execution_count
    assert tool.dumps(tool.normalise(derived)) == tool.dumps(stored)


def test_the_picture_of_the_readme_is_that_of_the_notebook():
    made = tool.readme_picture(load(ROOT / "notebooks" / "08_trained_heads.ipynb"))
    assert made is not None and tool.PICTURE.read_bytes() == made
    assert str(tool.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text(encoding="utf-8")


def notebook(*sources):
    cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    return nbformat.v4.new_notebook(cells=cells)


def test_what_is_of_the_author_goes():
    made = notebook("1 + 1")
    made.metadata["author"] = "me"
    made.cells[0].metadata["execution"] = {"when": "now"}
    made.cells[0].execution_count = 17
    tidy = tool.normalise(made)
    assert set(tidy.metadata) == {"kernelspec", "language_info"}
    assert not tidy.cells[0].metadata and tidy.cells[0].execution_count == 1


def test_a_cell_that_raises_leaves_the_file_as_it_was(tmp_path, capsys):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    path = folder / "bad.ipynb"
    path.write_text(tool.dumps(notebook("raise ValueError('on purpose')")), encoding="utf-8")
    before = path.read_bytes()
    assert tool.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert "on purpose" in capsys.readouterr().out


def test_a_path_that_is_no_notebook_is_named(capsys):
    assert tool.main(["nowhere/none.ipynb"]) == 1
    assert "none.ipynb: not a notebook of notebooks/ or solutions/" in capsys.readouterr().out
