"""Validate the stored outputs under other circumstances, and print a table.

    python tools/robust.py                  all circumstances (about two hours)
    python tools/robust.py threads device   those whose name contains one of the words
    python tools/robust.py --list           their names

Each circumstance is one run of nbval over copies of all notebooks. Other versions are installed in
build/robust, where they stay; what cannot be installed is said. What differs is mended in the notebook
(what it prints), not by loosening the comparison.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import nbformat
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "solutions", "exercises")
ENVIRONMENTS = ROOT / "build" / "robust"
PERTURBED = """\
import torch
_randn = torch.randn
def _perturbed(*size, **named):
    x = _randn(*size, **named)
    return x + 1e-6 * torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(x)
torch.randn = _perturbed"""
ON_PAPER = f"import sys\nsys.path.insert(0, {str(ROOT / 'tools')!r})\nimport stand_in_device\nstand_in_device.install()"


class CannotInstall(Exception):
    """Another version cannot be had here; the message says why."""


# PyTorch's own layer leaves its native path, whose memory this cell compares, wherever a torch function mode is on;
# the device on paper is one.
NOT_TOLD_ON_PAPER = ("n07-26",)


@dataclass
class Circumstance:
    """How the notebooks are run: once with all defaults would be as they are."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    change: Callable | None = None  # of a notebook, before it is run
    alone: bool = False  # each notebook in a folder of its own
    times: int = 1
    interpreter: Callable[[], str] = lambda: sys.executable


def begin_with(source: str):
    """Return a change that runs a source at the beginning of the first code cell, without a new output."""

    def change(notebook):
        cell = next(c for c in notebook.cells if c.cell_type == "code")
        cell.source = f"{source}\n{cell.source}"

    return change


def on_paper(notebook) -> None:
    """Put the notebook on the device on paper; what cannot be told there is not compared."""
    begin_with(ON_PAPER)(notebook)
    for cell in notebook.cells:
        if cell.id in NOT_TOLD_ON_PAPER:
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "nbval-ignore-output"]


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


def lowest(name: str) -> str:
    """Return the requirement of the oldest release that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == name:
            return f"{name}=={next(iter(requirement.specifier)).version}.*"
    raise ValueError(f"{name} is not among the dependencies of pyproject.toml")


def find_python(name: str) -> str:
    """Return the interpreter of a Python such as "3.12", on the path or among pyenv's.

    Raises:
        CannotInstall: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in (f"python{name}", *map(str, pyenv.glob(f"versions/{name}.*/bin/python"))):
        found = shutil.which(candidate)
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    raise CannotInstall(f"there is no Python {name} here")


def installed(folder: str, *requirements: str, python: str | None = None):
    """Return a function that gives the interpreter of an environment with other versions, made when first asked for."""

    def make() -> str:
        interpreter_here = sys.executable if python is None else find_python(python)
        place = ENVIRONMENTS / folder
        interpreter = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if not (place / "made").exists():
            _run(interpreter_here, "-m", "venv", "--clear", str(place))
            _run(str(interpreter), "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[real]", *requirements)
            (place / "made").touch()
        return str(interpreter)

    return make


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CannotInstall(lines[-1] if lines else f"exit status {done.returncode}")


def circumstances() -> list[Circumstance]:
    torch_here = f"torch=={version('torch').split('+')[0]}"
    return [
        Circumstance("five runs in a row", times=5),
        Circumstance("1 thread", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
        Circumstance("2 threads", {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}),
        Circumstance("4 threads", {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}),
        Circumstance("MKLDNN off", change=begin_with("import torch\ntorch.backends.mkldnn.enabled = False")),
        Circumstance("matmul precision medium", change=begin_with("import torch\ntorch.set_float32_matmul_precision('medium')")),
        Circumstance("random inputs perturbed by 1e-6", change=begin_with(PERTURBED)),
        Circumstance("another device, on paper", {"MHA_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}, on_paper),
        Circumstance("LC_ALL=C, PYTHONUTF8=0", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
        Circumstance("each copied alone to another folder", alone=True),
        Circumstance("every cell twice in a row", change=twice),
        Circumstance("started from the repository root", change=begin_with(f"import os\nos.chdir({str(ROOT)!r})")),
        Circumstance("oldest torch", interpreter=installed("oldest-torch", lowest("torch"))),
        Circumstance("newest torch and matplotlib", interpreter=installed("newest", "torch", "matplotlib")),
        Circumstance("oldest matplotlib", interpreter=installed("oldest-matplotlib", torch_here, lowest("matplotlib"))),
        *(
            Circumstance(f"Python {name}", interpreter=installed(f"python{name}", torch_here, python=name))
            for name in ("3.11", "3.12", "3.13")
            if name != ".".join(map(str, sys.version_info[:2]))
        ),
    ]


def copy_of(folder: Path, change=None, alone: bool = False) -> Path:
    """Copy the notebooks, and nothing else, to another folder, each changed on the way."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        for path in sorted((ROOT / name).glob("*.ipynb")):
            place = folder / name / path.stem if alone else folder / name
            place.mkdir(parents=True, exist_ok=True)
            notebook = nbformat.read(path, as_version=4)
            if change is not None:
                change(notebook)
            nbformat.write(notebook, place / path.name)
    shutil.copy(ROOT / "tests" / "nbval_sanitize.cfg", folder)
    return folder


def validate(folder: Path, environment: dict[str, str], interpreter: str = sys.executable, folders=FOLDERS) -> str:
    """Run nbval over a folder; return what did not agree, or ""."""
    environment = {"OMP_NUM_THREADS": "1"} | environment
    # The environments of other versions hold what the course needs, and no xdist; several threads leave no core for a second worker.
    has_workers = interpreter == sys.executable and environment["OMP_NUM_THREADS"] == "1" and importlib.util.find_spec("xdist")
    workers = ("-n", "logical", "--maxprocesses=4", "--dist", "loadscope") if has_workers else ()
    command = [
        interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=300",
        "--nbval-sanitize-with=nbval_sanitize.cfg", *workers, *folders,
    ]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    failed = [line.split(" - ")[0].split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ", ".join(failed) or (done.stdout + done.stderr)[-300:]


def judge(circumstance: Circumstance) -> tuple[str, str]:
    """Return yes, NO or not tried, and why."""
    try:
        interpreter = circumstance.interpreter()
    except CannotInstall as reason:
        return "not tried", str(reason)
    for run in range(circumstance.times):
        with tempfile.TemporaryDirectory() as folder:
            course = copy_of(Path(folder) / "course", circumstance.change, circumstance.alone)
            why = validate(course, circumstance.environment, interpreter)
        if why:
            return "NO", why if circumstance.times == 1 else f"run {run + 1}: {why}"
    return "yes", ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the circumstances whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(arguments)
    chosen = [c for c in circumstances() if not options.words or any(word in c.name for word in options.words)]
    if not chosen:
        parser.error(f"no circumstance contains {' or '.join(options.words)}; --list shows their names")
    if options.list:
        print("\n".join(c.name for c in chosen))
        return 0
    print("| circumstance | agrees | seconds | what differs |\n|---|---|---:|---|", flush=True)
    agreed = True
    for circumstance in chosen:
        start = time.monotonic()
        verdict, why = judge(circumstance)
        agreed &= verdict != "NO"
        print(f"| {circumstance.name} | {verdict} | {time.monotonic() - start:.0f} | {why.replace('|', ' ')} |", flush=True)
    return int(not agreed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
