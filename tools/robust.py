"""Validate the stored outputs under other circumstances, and print a table.

    python tools/robust.py            all circumstances
    python tools/robust.py threads    those whose name contains a word

Each circumstance is one run of nbval over copies of all notebooks. What differs is mended in the
notebook (what it prints), not by loosening the comparison.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "solutions", "exercises")
FIRST = {
    "mkldnn off": "import torch\ntorch.backends.mkldnn.enabled = False",
    "matmul precision medium": "import torch\ntorch.set_float32_matmul_precision('medium')",
    "inputs perturbed by 1e-6": (
        "import torch\n_randn = torch.randn\n"
        "def _perturbed(*size, **named):\n    x = _randn(*size, **named)\n"
        "    return x + 1e-6 * torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(x)\n"
        "torch.randn = _perturbed"
    ),
}
ENVIRONMENTS = {
    "as it is": {},
    "1 thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "4 threads": {"OMP_NUM_THREADS": "4"},
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0"},
}


def copy_of(folder: Path, change=None) -> Path:
    """Copy the notebooks alone to another folder, each changed on the way."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        for path in sorted((ROOT / name).glob("*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            if change is not None:
                change(notebook)
            nbformat.write(notebook, folder / name / path.name)
    shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", folder)
    return folder


def begin_with(source: str):
    """Return a change that runs a source at the beginning of the first code cell, without a new output."""

    def change(notebook):
        cell = next(c for c in notebook.cells if c.cell_type == "code")
        cell.source = f"{source}\n{cell.source}"

    return change


def twice(notebook) -> None:
    """Run every cell twice in a row; both must print what is stored."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            again = nbformat.from_dict(json.loads(json.dumps(cell)))
            again.id = f"{cell.id}-again"[:64]
            cells.append(again)
    notebook.cells = cells


def validate(folder: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Run nbval over a folder; return whether all agreed, and what did not."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=300",
        "--nbval-sanitize-with=nbval_sanitize.cfg", *FOLDERS,
    ]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, ", ".join(failed) or ("" if done.returncode == 0 else done.stdout[-300:])


def circumstances():
    for name, environment in ENVIRONMENTS.items():
        yield name, None, environment
    for name, source in FIRST.items():
        yield name, begin_with(source), {}
    yield "every cell twice", twice, {}


def main(words: list[str]) -> int:
    print("| circumstance | agrees | seconds | what differs |\n|---|---|---:|---|", flush=True)
    agreed = True
    for name, change, environment in circumstances():
        if words and not any(word in name for word in words):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            fine, why = validate(copy_of(Path(folder) / "course", change), environment)
        agreed &= fine
        print(f"| {name} | {'yes' if fine else 'NO'} | {time.monotonic() - start:.0f} | {why} |", flush=True)
    return int(not agreed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
