"""Start JupyterLab in the course's folder, or say in one line what is in the way and how out.

    python tools/lab.py                                  opens chapter 0
    python tools/lab.py notebooks/03_masking.ipynb       opens another notebook
    python tools/lab.py --port 9000 --no-browser         at a port of your own, and no browser

Its log holds errors only; the address is printed once.
"""

import argparse
import logging
import os
import socket
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parent.parent
FIRST = "notebooks/00_start_here.ipynb"
# Folders that Jupyter, IPython and matplotlib write to.
IN_THE_HOME = (
    "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR", "MPLCONFIGDIR",
)


class CannotStart(Exception):
    """Something is in the way; the message says what, and how out."""


def arguments(words: list[str]) -> argparse.Namespace:
    """Return what was asked.

    Raises:
        CannotStart: a word is not known, or the port is no number.
    """
    parser = argparse.ArgumentParser(prog="tools/lab.py", description="Start JupyterLab in the course's folder.", exit_on_error=False)
    parser.add_argument("notebook", nargs="?", default=FIRST, help=f"what to open; else {FIRST}")
    parser.add_argument("--port", help="take this port and no other; else 8888, or the next free one")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    try:
        asked, unknown = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise CannotStart(f"{error}. python tools/lab.py --help shows what can be asked.") from None
    if unknown:
        raise CannotStart(f"{unknown[0]} is not known here. python tools/lab.py --help shows what can be asked.")
    if asked.port is not None:
        asked.port = port_number(asked.port)
    return asked


def port_number(text: str) -> int:
    """Return the number of a port that can be listened at.

    Raises:
        CannotStart: it is no number of a port, or the port is taken.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise CannotStart(f"--port {text} is no port: give a number from 1 to 65535, or leave it out.")
    with socket.socket() as trial:
        if os.name != "nt":  # there the option would let two programs have one port
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", int(text)))
        except PermissionError:
            raise CannotStart(f"You may not listen at port {text}: take one from 1024 up, or leave --port out.") from None
        except OSError:
            raise CannotStart(f"Port {text} is taken: name another, or leave --port out and the next free one is taken.") from None
    return int(text)


def check_course(notebook: str, root: Path = ROOT) -> str:
    """Return the notebook's path inside the course, with slashes.

    Raises:
        CannotStart: the notebook is not there, or the course's folder cannot be written.
    """
    path = Path(os.path.abspath(root / notebook))
    if not path.is_file():
        raise CannotStart(f"There is no {notebook} in {root}. Name a notebook as notebooks/03_masking.ipynb.")
    if not path.is_relative_to(root):
        raise CannotStart(f"{path} lies outside the course's folder {root}. Name a notebook of the course.")
    if not os.access(path.parent, os.W_OK):
        raise CannotStart(
            f"You may not write in {path.parent}: answers would be lost. Copy the course to a folder of your own and start there."
        )
    return path.relative_to(root).as_posix()


def can_show(environment=os.environ, platform: str = sys.platform) -> bool:
    """Return True if a browser that opens here would be seen by whoever typed the command."""
    if environment.get("BROWSER"):
        return True
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return False
    return not platform.startswith("linux") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def prepare(environment=os.environ) -> list[str]:
    """Set what JupyterLab and its kernels inherit, where the user set nothing; return what to say about it."""
    said = []
    # Kernels with one thread each do not take each other's cores; none of the course's tables is large enough to gain by more.
    environment.setdefault("OMP_NUM_THREADS", "1")
    # A kernel python3 in the home may belong to another Python.
    environment.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    if not _can_make(Path.home()):
        away = Path(tempfile.mkdtemp(prefix="course-jupyter-"))
        for name in IN_THE_HOME:
            environment.setdefault(name, str(away / name.lower()))
        said.append(f"Your home {Path.home()} cannot be written: JupyterLab's own settings go to {away}. Your answers stay in the course.")
    return said


def _can_make(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def options(asked: argparse.Namespace, notebook: str, *, root: Path = ROOT, is_root: bool, shows: bool) -> list[str]:
    """Return JupyterLab's own options for what was asked."""
    from jupyter_server.utils import url_path_join

    from urllib.parse import quote

    given = [
        # Without it JupyterLab takes the folder of the notebook, and nothing beside it exists.
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url={url_path_join('/lab/tree', quote(notebook))}",
        "--Application.log_level=ERROR", "--ServerApp.log_level=ERROR", "--LabApp.log_level=ERROR",
    ]
    if asked.port is not None:
        given += [f"--ServerApp.port={asked.port}", "--ServerApp.port_retries=0"]
    if is_root:
        given.append("--ServerApp.allow_root=True")
    if asked.no_browser or not shows:
        given.append("--ServerApp.open_browser=False")
    return given


def start(asked: argparse.Namespace) -> None:
    """Serve the course until it is stopped.

    Raises:
        CannotStart: JupyterLab is not installed, or something is missing or taken.
    """
    notebook = check_course(asked.notebook)
    said = prepare()
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        raise CannotStart(f"{sys.executable} has no JupyterLab. Run make lab, or activate the course's environment.") from None
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    shows = can_show()
    if is_root:
        said.append("You are root: JupyterLab is started with --allow-root.")
    os.chdir(ROOT)
    server = LabApp.initialize_server(argv=options(asked, notebook, is_root=is_root, shows=shows))
    # The address is printed here, once; what the server says of it itself is dropped.
    server.log.addFilter(lambda record: record.levelno != logging.CRITICAL or record.funcName != "start_app")
    if not (asked.no_browser or shows):
        said.append("No browser can be opened from here: open the address yourself.")
    if os.environ.get("SSH_CONNECTION"):
        said.append(f"Over ssh, first run on your own machine: ssh -L {server.port}:localhost:{server.port} THIS-MACHINE")
    print(*said, f"The course: {server.local_url}", "Ctrl+C stops it.", sep="\n", flush=True)
    server.start()


def main(words: list[str]) -> int:
    try:
        start(arguments(words))
    except CannotStart as reason:
        print(reason)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
