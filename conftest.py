"""What pytest needs for any file of the course, a notebook alone included."""

import os

# Kernels and workers with one thread each do not take each other's cores. torch reads it when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent


def pytest_configure():
    # The notebooks' kernels start in other folders: found here is not enough.
    asked = [sys.executable, "-c", "import importlib.util as i, sys; sys.exit(i.find_spec('mha_lib') is None)"]
    if subprocess.run(asked, cwd=ROOT.parent).returncode:
        pytest.exit(f"mha_lib is not installed in {sys.executable}. Run make test, or make env first", returncode=3)


def pytest_collection_modifyitems(items):
    """Skip the chapter with the real model where its files are not."""
    real = [item for item in items if item.path.name == "14_real_heads.ipynb"]
    if real:
        from tests.conftest import missing_model

        reason = missing_model()
        for item in real if reason else ():
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    """Say what to do about a stored output that is not what a cell prints now."""
    red = [report.nodeid for report in terminalreporter.stats.get("failed", []) if ".ipynb::" in report.nodeid]
    if red:
        terminalreporter.write_line(
            f"Other than stored: the output of {len(red)} cell{'s' * (len(red) > 1)}. If the new one is right: make notebooks, then git diff."
        )
