"""What the course costs to use and to test, beside what must be paid.

    python -m benchmarks.suite             some minutes: the whole suite runs once
    python -m benchmarks.suite --no-tests  the rest alone

The floor of the suite is the bare cost of one kernel with torch and matplotlib for each notebook, plus the
runs that train. Prints Markdown tables.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from mha_lib import checks
from tests.answers import right_answers, wrong_answers

ROOT = Path(__file__).resolve().parent.parent

BARE = "import torch\nimport matplotlib.pyplot as plt\nplt.figure()\nplt.close()"
TRAINS = re.compile(r"\b\w*\.?train\(\d|lookups\.train\(|next_token\.train\(|\btrain\(num_heads\)")
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


def training() -> dict[str, float]:
    """Return, for each notebook that trains, the seconds of the cells that do."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if not any(TRAINS.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
            continue
        client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
        spent = 0.0
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                took = seconds_of(lambda: client.execute_cell(cell, index))
                if cell.cell_type == "code" and TRAINS.search(cell.source):
                    spent += took
        found[path.name] = spent
    return found


def check_seconds() -> list[float]:
    answers = [(getattr(checks, a.check), a.load()) for a in right_answers() + wrong_answers()]
    return [seconds_of(lambda: check.judge(answer)) for check, answer in answers]


def suite() -> tuple[float, str]:
    """Run make test; return its seconds and what pytest prints of its slowest parts."""
    start = time.perf_counter()
    longest = os.environ | {"PYTEST_ADDOPTS": "-q --durations=25"}
    done = subprocess.run(["make", "test"], cwd=ROOT, env=longest, capture_output=True, text=True)
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stdout[-3000:])
    return took, done.stdout[done.stdout.index("slowest") :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-tests", action="store_true", help="leave out the run of the suite")
    options = parser.parse_args()
    took = check_seconds()
    print("| what | seconds |\n|---|---:|")
    print(f"| import mha_lib, beyond torch | {seconds_in_fresh_process(IMPORT):.3f} |")
    print(f"| first check in a fresh process | {seconds_in_fresh_process(FIRST_CHECK):.2f} |")
    print(f"| a check, median of {len(took)} answers | {statistics.median(took):.3f} |")
    print(f"| a check, longest | {max(took):.2f} |")
    kernel, trained = bare_kernel(), training()
    notebooks = sum(len(list((ROOT / f).glob("*.ipynb"))) for f in ("notebooks", "solutions", "exercises"))
    floor = notebooks * kernel + sum(trained.values())
    print(f"| bare kernel with torch and matplotlib | {kernel:.2f} |")
    for name, seconds in trained.items():
        print(f"| training in {name} | {seconds:.1f} |")
    print(f"| floor of the suite: {notebooks} kernels and the training | {floor:.0f} |")
    if not options.no_tests:
        seconds, profile = suite()
        print(f"| the suite, {seconds / floor:.2f} of the floor | {seconds:.0f} |\n\n{profile}")


if __name__ == "__main__":
    main()
