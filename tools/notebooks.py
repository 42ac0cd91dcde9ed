"""Execute the notebooks in fresh kernels, normalise them, and derive exercises/ from solutions/.

    python tools/notebooks.py                       everything
    python tools/notebooks.py solutions/01*.ipynb   some; a solution also renews its exercise

The notebooks with their outputs are the source; nobody edits exercises/ by hand.
"""

import argparse
import base64
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("notebooks", "solutions")
KEPT_METADATA = ("nbgrader", "tags")
PICTURE = ROOT / "docs" / "trained_heads.png"  # the picture of the cell tagged readme-picture
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def dumps(notebook: NotebookNode) -> str:
    """Return the text of a notebook as it stands in its file."""
    return nbformat.writes(notebook, version=4) + "\n"


def execute(notebook: NotebookNode, folder: Path, timeout: int = 300) -> NotebookNode:
    """Run every cell in a fresh kernel, started in a folder.

    Raises:
        CellExecutionError: a cell raised that is not tagged raises-exception.
    """
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],
    ).execute()
    return notebook


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Take out what depends on the author's machine, and number the executed cells 1, 2, 3, ..."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    count = 0
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in KEPT_METADATA})
        cell.source = cell.source.rstrip()
        if cell.cell_type != "code":
            continue
        if cell.execution_count is not None:
            count += 1
            cell.execution_count = count
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = NotebookNode()
            if output.output_type == "execute_result":
                output.execution_count = count
    return notebook


def clear_solutions(solution: NotebookNode) -> NotebookNode:
    """Return the exercise: the solution regions replaced by stubs, with nbgrader's own preprocessor."""
    from nbgrader.preprocessors import ClearSolutions
    from traitlets.config import Config

    preprocessor = ClearSolutions(config=Config(ClearSolutions={"code_stub": {"python": STUB}}))
    exercise = nbformat.from_dict(solution)
    exercise.metadata["kernelspec"] = {"language": "python", "name": "python3", "display_name": "Python 3"}
    exercise, _ = preprocessor.preprocess(nbformat.reads(nbformat.writes(exercise), as_version=4), {})
    for cell in exercise.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cell.source = cell.source.replace("solutions/", "exercises/")
    return exercise


def readme_picture(notebook: NotebookNode) -> bytes | None:
    """Return the picture that a notebook makes for the README, or None if it makes none."""
    for cell in notebook.cells:
        if "readme-picture" in cell.metadata.get("tags", []):
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    return base64.b64decode(output.data["image/png"])
    return None


def exercise_path(solution: Path) -> Path:
    return solution.parent.parent / "exercises" / solution.name


def renew(path: Path) -> list[Path]:
    """Execute one notebook, and its exercise where it is a solution; return the files that changed."""
    made = [(path, normalise(execute(read(path), path.parent)))]
    if path.parent.name == "solutions":
        target = exercise_path(path)
        target.parent.mkdir(exist_ok=True)
        made.append((target, normalise(execute(clear_solutions(read(path)), target.parent))))
    changed = []
    picture = readme_picture(made[0][1])
    if picture is not None and path.is_relative_to(ROOT):
        PICTURE.write_bytes(picture)
    for target, notebook in made:
        text = dumps(notebook)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            changed.append(target)
    return changed


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of the same stream: where they break depends on timing."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if output.output_type == "stream" and last is not None and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks of notebooks/ or solutions/; default: all")
    paths = parser.parse_args(arguments).paths
    paths = paths or [p for folder in SOURCES for p in sorted((ROOT / folder).glob("*.ipynb"))]
    failed = False
    for path in map(Path.resolve, paths):
        if not path.is_file() or path.parent.name not in SOURCES:
            print(f"{path}: not a notebook of {' or '.join(f'{s}/' for s in SOURCES)}")
            failed = True
            continue
        try:
            changed = renew(path)
        except CellExecutionError as error:
            print(f"{path.name}: a cell raised; the file is left as it was\n{error}")
            failed = True
            continue
        print(f"{path.relative_to(path.parent.parent)}: {', '.join(str(c.relative_to(c.parent.parent)) for c in changed) or 'unchanged'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
