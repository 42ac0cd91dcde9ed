"""A broken environment says in one line what is wrong and how out, and make again afterwards works."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools import make_env

STAND_IN = """\
import os, sys
folder = sys.argv[1]
os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
print("made anew")
if os.path.exists("fails"):
    sys.exit("cannot")
if not os.path.exists(os.path.join(folder, "bin", "python")):
    os.symlink(sys.executable, os.path.join(folder, "bin", "python"))
open(os.path.join(folder, "made"), "w").write(os.getcwd())
"""


def test_an_old_python_is_named():
    with pytest.raises(make_env.CannotMake, match=r"needs Python 3\.11 or newer; this is 3\.9\.1.*make PYTHON="):
        make_env.check_python((3, 9, 1))
    make_env.check_python((3, 11, 0))


def test_the_script_can_be_read_by_old_pythons():
    import ast

    ast.parse((ROOT / "tools" / "make_env.py").read_text(encoding="utf-8"), feature_version=(3, 6))


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    make_env.check_folder(str(tmp_path / ".venv"))
    with pytest.raises(make_env.CannotMake, match="There is no folder .*nowhere"):
        make_env.check_folder(str(tmp_path / "nowhere" / ".venv"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(make_env.CannotMake, match=f"You may not write in {tmp_path}.*a folder of your own"):
        make_env.check_folder(str(tmp_path / ".venv"))


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path):
    with pytest.raises(make_env.CannotMake, match=r"has 0\.5 GB free.*Free some"):
        make_env.check_space(str(tmp_path), free=2**29)


def build(version):
    return {"install": [{"metadata": {"name": "torch", "version": version}}]}


@pytest.mark.parametrize(
    ("version", "system", "needed"),
    [
        ("2.13.0+cpu", "linux", make_env.WITH_CPU),
        ("2.13.0+cu128", "linux", make_env.WITH_CUDA),
        ("2.13.0", "linux", make_env.WITH_CUDA),
        ("2.13.0", "darwin", make_env.WITH_CPU),
        ("2.13.0", "win32", make_env.WITH_CPU),
        ("2.13.0+cu128", "win32", make_env.WITH_CUDA),
    ],
)
def test_the_disk_is_asked_for_what_pip_would_take(version, system, needed, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    assert make_env.space_for(build(version)) == needed


def test_pips_own_reason_is_shown():
    """From the first error on, fifteen lines at most; without one, the last five."""
    lines = ["Collecting x", "ERROR: Could not find a version", *(f"more {i}" for i in range(20))]
    assert make_env.reason("\n\n".join(lines)) == "\n".join(lines[1:16])
    assert make_env.reason("\n".join(lines[2:])) == "\n".join(lines[-5:])


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: ... [Errno 13] Permission denied: '/usr/lib/x'", "may not be written"),
        ("The virtual environment was not created successfully because ensurepip is not\navailable.", "lacks venv"),
        ("NewConnectionError: Failed to establish a new connection", "is there a network"),
        ("something else", "reason stands above"),
    ],
)
def test_what_pip_says_is_put_into_a_line(output, words):
    assert words in make_env.explain(output) and "run make again" in make_env.explain(output).lower()


def test_without_a_network_nothing_is_called_made(tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_EXTRA_INDEX_URL": "", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, str(ROOT / "tools" / "make_env.py"), str(tmp_path / "env")]
    done = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.splitlines()[-1] == make_env.explain("NewConnectionError")
    assert not (tmp_path / "env" / "made").exists()


@pytest.mark.skipif(shutil.which("make") is None or os.name == "nt", reason="make is not used here")
class TestMake:
    @pytest.fixture
    def course(self, tmp_path):
        """The Makefile over a stand-in that makes no real environment."""
        folder = tmp_path / "Kurs für Anfänger (1) [neu]"
        (folder / "tools").mkdir(parents=True)
        (folder / "tools" / "make_env.py").write_text(STAND_IN)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        return folder

    def make(self, folder, *arguments):
        return subprocess.run(["make", "env", f"PYTHON={sys.executable}", *arguments], cwd=folder, capture_output=True, text=True)

    def test_made_once_and_again_when_needed(self, course):
        assert "made anew" in self.make(course).stdout
        assert "made anew" not in self.make(course).stdout
        os.utime(course / "pyproject.toml", (2e9, 2e9))
        assert "made anew" in self.make(course).stdout

    def test_after_a_failure_make_begins_anew(self, course):
        (course / "fails").touch()
        assert self.make(course).returncode != 0
        (course / "fails").unlink()
        assert "made anew" in self.make(course).stdout

    def test_moved_or_without_its_interpreter_it_is_made_anew(self, course):
        self.make(course)
        moved = course.rename(course.with_name("moved"))
        assert "made anew" in self.make(moved).stdout
        python = moved / ".venv" / "bin" / "python"
        python.unlink()
        python.symlink_to("/nowhere/python")
        assert "made anew" in self.make(moved).stdout

    def test_a_python_under_an_awkward_path(self, course, tmp_path):
        python = tmp_path / "My Python (x)" / "python3"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        assert "made anew" in self.make(course, f"PYTHON={python}").stdout

    def test_a_python_that_is_not_there_is_named(self, course):
        done = self.make(course, "PYTHON=python0.1")
        assert done.returncode != 0 and "There is no python0.1 here" in done.stdout and "make PYTHON=" in done.stdout
