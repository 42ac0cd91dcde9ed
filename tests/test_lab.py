"""Starting JupyterLab: in the course's folder, for everyone, with one line where something is in the way."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.conftest import ROOT
from tools import lab


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A copy of the course under an awkward path, behind a symbolic link, served by the command that make lab runs."""
    course = tmp_path_factory.mktemp("place") / "Kurs für Anfänger (1) [neu]"
    for name in ("notebooks", "exercises", "tools"):
        shutil.copytree(ROOT / name, course / name)
    link = course.with_name("a link")
    link.symlink_to(course)
    command = [sys.executable, str(link / "tools" / "lab.py"), "--no-browser", "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        said = []
        for line in server.stdout:
            said.append(line)
            if "Ctrl+C" in line:
                break
        yield "".join(said)
        server.terminate()


def ask(said: str, path: str) -> dict:
    base, token = re.search(r"(http://[^/]+)/\S*?token=(\w+)", said).groups()
    for _ in range(100):  # the address is printed a moment before anyone listens there
        try:
            with urllib.request.urlopen(f"{base}/api/contents/{path}?token={token}", timeout=20) as answer:
                return json.load(answer)
        except ConnectionError as refused:
            reason = refused
        except urllib.error.URLError as refused:
            reason = refused.reason
        time.sleep(0.2)
    raise AssertionError(f"{base} does not answer: {reason}")


def test_the_command_of_the_makefile_is_this_script():
    assert re.search(r"(?m)^lab: .*\n\t@\$\(BIN\)/python tools/lab.py", (ROOT / "Makefile").read_text(encoding="utf-8"))


def test_the_exercises_exist_in_the_lab_that_is_started(served):
    names = [entry["name"] for entry in ask(served, "exercises")["content"]]
    assert "01_single_head_attention.ipynb" in names
    assert {"notebooks", "exercises"} <= {entry["name"] for entry in ask(served, "")["content"]}


def test_the_log_is_the_address_and_no_more(served):
    lines = served.strip().splitlines()
    assert len(lines) <= 4 and sum("http" in line for line in lines) == 1, served


def test_a_taken_port_is_said_in_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert lab.main(["--no-browser", "--port", str(port)]) == 1
    assert capsys.readouterr().out == f"Port {port} is taken: name another, or leave --port out and the next free one is taken.\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--port", "many"], "--port many is no port: give a number from 1 to 65535, or leave it out."),
        (["--port", "0"], "--port 0 is no port"),
        (["--wrong"], "--wrong is not known here"),
        (["notebooks/99_none.ipynb"], "There is no notebooks/99_none.ipynb in"),
        (["../README.md"], "There is no ../README.md in"),
    ],
)
def test_bad_words_are_said_in_one_line(words, said, capsys):
    assert lab.main(words) == 1
    out = capsys.readouterr().out
    assert out.startswith(said) and out.count("\n") == 1


def test_who_can_see_a_browser():
    assert lab.can_show({"DISPLAY": ":0"}, "linux") and not lab.can_show({}, "linux")
    assert not lab.can_show({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, "linux") and lab.can_show({}, "darwin")


def test_root_is_allowed_and_told():
    asked = lab.arguments([])
    assert "--ServerApp.allow_root=True" in lab.options(asked, lab.FIRST, is_root=True, shows=True)
    assert "--ServerApp.allow_root=True" not in lab.options(asked, lab.FIRST, is_root=False, shows=True)
    assert "--ServerApp.open_browser=False" in lab.options(asked, lab.FIRST, is_root=False, shows=False)


def test_kernels_get_one_thread_and_this_environment_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = {}
    assert lab.prepare(said) == [] and said == {"OMP_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    said = {"OMP_NUM_THREADS": "4", "JUPYTER_PREFER_ENV_PATH": "0"}
    assert lab.prepare(dict(said)) == [] and said == {"OMP_NUM_THREADS": "4", "JUPYTER_PREFER_ENV_PATH": "0"}


KERNEL = "from jupyter_client.kernelspec import KernelSpecManager as M; print(M().get_kernel_spec('python3').argv[0])"


def test_a_kernel_of_another_python_in_the_home_is_not_taken(tmp_path):
    spec = tmp_path / ".local" / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/nowhere/python", "-m", "ipykernel_launcher"], "display_name": "Python 3", "language": "python"}))
    home = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "XDG"))} | {"HOME": str(tmp_path)}
    lab.prepare(home)
    done = subprocess.run([sys.executable, "-c", KERNEL], env=home, capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "/nowhere/python"


DRAW = "import matplotlib.pyplot as plt; plt.figure(); from jupyter_core.paths import jupyter_runtime_dir as d; import os; os.makedirs(d())"


def test_a_home_that_cannot_be_written_is_said_once_and_in_no_red_line(tmp_path, monkeypatch):
    home = tmp_path / "home"  # a file: nobody can write in it, root neither
    home.touch()
    monkeypatch.setenv("HOME", str(home))
    prepared = {k: v for k, v in os.environ.items() if k not in lab.IN_THE_HOME}
    (said,) = lab.prepare(prepared)
    assert said.startswith(f"Your home {home} cannot be written:") and said.endswith("Your answers stay in the course.")
    done = subprocess.run([sys.executable, "-c", DRAW], env=prepared, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
