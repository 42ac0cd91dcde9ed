"""What learners do to cells changes no verdict: split, merge, duplicate, move, clear metadata, run again."""

import json

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from tests.conftest import ROOT, load

PATH = ROOT / "exercises" / "01_single_head_attention.ipynb"
RIGHT = "def scores(query, key):\n    return query @ key.mT\n"
WRONG = "def softmax_rows(scores):\n    return scores.softmax(-2)\n"
WANT = {
    "scores": ["passed", None],
    "softmax_rows": ["failed", "softmax_over_queries"],
    "attention": ["not attempted", None],
    "single_head": ["not attempted", None],
}
ASK = "import json, mha_lib.checks.result as r\nprint(json.dumps({k: [v.status, v.misconception] for k, v in r.session.items()}))"


def index(notebook, grade_id):
    return next(i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def untouched(notebook):
    pass


def split(notebook):
    at = index(notebook, "scores")
    notebook.cells[at].source = "def helper(key):\n    return key.mT\n"
    notebook.cells.insert(at + 1, new_code_cell("def scores(query, key):\n    return query @ helper(key)\n"))


def merged(notebook):
    first, check = index(notebook, "scores"), index(notebook, "check-softmax_rows")
    cells = [c for c in notebook.cells[first : check + 1] if c.cell_type == "code"]
    notebook.cells[first : check + 1] = [new_code_cell("\n\n".join(c.source for c in cells))]


def duplicated(notebook):
    at = index(notebook, "check-softmax_rows")
    notebook.cells.insert(at, new_code_cell(notebook.cells[at].source))
    notebook.cells.insert(at, new_code_cell(WRONG))


def moved(notebook):
    notebook.cells.append(notebook.cells.pop(index(notebook, "check-scores")))


def cleared(notebook):
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
    notebook.metadata = nbformat.NotebookNode()


def run_again(notebook):
    notebook.cells = [cell for cell in notebook.cells for _ in range(2)]
    for i, cell in enumerate(notebook.cells):
        cell = notebook.cells[i] = nbformat.from_dict(json.loads(json.dumps(cell)))
        cell.id = f"cell-{i}"


CHANGES = (untouched, split, merged, duplicated, moved, cleared, run_again)
RESET = "import mha_lib.checks.result as r; r.session.clear()\ndel scores, softmax_rows, attention, SingleHeadAttention"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What was found and shown after each change; one kernel runs all, emptied in between."""
    everything, ends = nbformat.v4.new_notebook(), {}
    for change in CHANGES:
        notebook = load(PATH)
        notebook.cells[index(notebook, "scores")].source = RIGHT
        notebook.cells[index(notebook, "softmax_rows")].source = WRONG
        change(notebook)
        begin = len(everything.cells)
        everything.cells += [*notebook.cells, new_code_cell(ASK), new_code_cell(RESET)]
        ends[change.__name__] = (begin, len(everything.cells) - 2)
    for i, cell in enumerate(everything.cells):
        cell.id = f"cell-{i}"
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("moved"))}}
    NotebookClient(everything, kernel_name="python3", resources=resources, extra_arguments=["--log-level=ERROR"]).execute()
    return {
        name: (json.loads(everything.cells[end].outputs[0].text), json.dumps([c.get("outputs") for c in everything.cells[begin:end]]))
        for name, (begin, end) in ends.items()
    }


@pytest.mark.parametrize("name", [change.__name__ for change in CHANGES])
def test_the_verdict_stays(name, outcomes):
    found, shown = outcomes[name]
    assert found == WANT
    for words in ("scores   passed", "softmax_rows   not yet", "attention   not attempted yet"):
        assert words in shown
