"""What the course costs to use and to test, beside what must be paid; writes the last tables of benchmarks/README.md.

    python -m benchmarks.suite             a quarter of an hour: the whole suite runs once
    python -m benchmarks.suite --no-tests  the rest alone, printed and not written

The floor of the suite is what no test of stored outputs can do without, shared by the workers: a kernel for each
notebook with the imports it makes, and the training that the notebooks do.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import nbformat
from nbclient import NotebookClient

from tests.answers.__main__ import judge_all
from tests.browser.lab import Lab, browser, first_minute
from tests.conftest import notebook_paths
from tools.pages import write

ROOT = Path(__file__).resolve().parent.parent

BARE = "import torch\nimport matplotlib.pyplot as plt\nplt.figure()\nplt.close()"
TRAINS = re.compile(r"\b(lookups|next_token|recall|task|induction)\.train\(|\btrain\(\d|= train_mine\(\)|two_diagonals\(train")
REAL = re.compile(r"transformers|real_model")
IMPORT_REAL = "import time, torch; t = time.perf_counter(); import transformers; print(time.perf_counter() - t)"
IMPORT = "import time, torch; t = time.perf_counter(); import mha_lib; print(time.perf_counter() - t)"
FIRST_CHECK = (
    "import time; from mha_lib import checks, attention; t = time.perf_counter(); "
    "checks.attention(lambda q, k, v: attention(q, k, v)); print(time.perf_counter() - t)"
)


def seconds_in_fresh_process(code: str, runs: int = 5) -> float:
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    return statistics.median(map(float, said))


def seconds_of(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def bare_kernel(runs: int = 5) -> float:
    """Return the median seconds to start a kernel, import torch and matplotlib in it, and end it."""

    def once():
        NotebookClient(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BARE)]), kernel_name="python3").execute()

    return statistics.median(seconds_of(once) for _ in range(runs))


def holds(path: Path, sign: re.Pattern) -> bool:
    return any(sign.search(cell.source) for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")


def training() -> dict[str, float]:
    """Return, for each notebook that trains, the seconds of the cells that do."""
    found = {}
    for path in notebook_paths("notebooks", "solutions"):
        if not holds(path, TRAINS):
            continue
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
        spent = 0.0
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                took = seconds_of(lambda: client.execute_cell(cell, index))
                if cell.cell_type == "code" and TRAINS.search(cell.source):
                    spent += took
        found[path.relative_to(ROOT).as_posix()] = spent
    return found


def minute() -> float:
    """Return the seconds of a learner from make lab to the end of chapter 1, in a browser."""
    with TemporaryDirectory() as folder, browser() as chromium, Lab(Path(folder)) as lab:
        return first_minute(lab, lab.learner(chromium))


def suite() -> tuple[float, dict[str, float]]:
    """Run make test; return its seconds, and those of each file of tests, the workers' taken together."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        start = time.perf_counter()
        done = subprocess.run(
            ["make", "test"], cwd=ROOT, env=os.environ | {"PYTEST_ADDOPTS": f"-q --junitxml={report}"}, capture_output=True, text=True
        )
        took = time.perf_counter() - start
        if done.returncode:
            sys.exit(done.stdout[-3000:])
        files: dict[str, float] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = re.sub(r"\.Test\w+$", "", case.get("classname")) or case.get("name")
            files[name] = files.get(name, 0.0) + float(case.get("time"))
    return took, files


def table(rows: list[tuple[str, str]], names: tuple[str, str] = ("what", "seconds")) -> str:
    return "\n".join([f"| {names[0]} | {names[1]} |", "|---|---:|", *(f"| {what} | {much} |" for what, much in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-tests", action="store_true", help="leave out the run of the suite, and write nothing")
    options = parser.parse_args()
    took = judge_all()[1]
    kernel, real, trained = bare_kernel(), seconds_in_fresh_process(IMPORT_REAL, runs=3), training()
    workers = min(os.cpu_count() or 1, 4)
    floor = (len(notebook_paths()) * kernel + sum(holds(path, REAL) for path in notebook_paths()) * real + sum(trained.values())) / workers
    use = table([
        ("from `make lab` to the end of chapter 1, in a browser", f"{minute():.1f}"),
        ("import mha_lib, beyond torch", f"{seconds_in_fresh_process(IMPORT):.3f}"),
        ("first check in a fresh process", f"{seconds_in_fresh_process(FIRST_CHECK):.2f}"),
        (f"a check, processor time, median of {len(took)} answers", f"{statistics.median(took):.3f}"),
        ("a check, processor time, longest", f"{max(took):.2f}"),
    ])
    test = [
        ("a kernel with torch and matplotlib", f"{kernel:.2f}"),
        ("import transformers, beyond torch", f"{real:.2f}"),
        *((f"training in {name}", f"{seconds:.1f}") for name, seconds in trained.items()),
        (f"the floor of the suite: {len(notebook_paths())} kernels, imports and training, {workers} at a time", f"{floor:.0f}"),
    ]
    if options.no_tests:
        print(use, table(test), sep="\n\n")
        return
    seconds, files = suite()
    test.append((f"`make test`, {seconds / floor:.2f} of the floor", f"{seconds:.0f}"))
    slowest = sorted(files.items(), key=lambda item: -item[1])[:10]
    texts = {"use": use, "tests": table(test), "slowest": table([(n, f"{t:.0f}") for n, t in slowest], ("the ten slowest files", "seconds"))}
    for name, text in texts.items():
        print(text, end="\n\n")
        write(ROOT / "benchmarks" / "README.md", name, text, "python -m benchmarks.suite")


if __name__ == "__main__":
    main()
