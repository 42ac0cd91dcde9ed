"""A JupyterLab over a copy of the course, started as README says, and what a person does in it."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat

from tests.conftest import ROOT

FIRST = "notebooks/01_single_head_attention.ipynb"
PROMPT = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SETTINGS = {
    # Every cell stays in the page, also those out of sight.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # A file is read after it was saved, never while.
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
# Scripts come in without the token of the printed address, and reach into the page.
CONFIG = {"IdentityProvider": {"token": ""}, "ServerApp": {"disable_check_xsrf": True}, "LabApp": {"expose_app_in_browser": True}}


def readme_command(which: int) -> list[str]:
    """Return a command from the block at the top of README, without its comment."""
    block = re.search(r"(?s)```\n(.+?)```", (ROOT / "README.md").read_text(encoding="utf-8")).group(1)
    return shlex.split(block.splitlines()[which], comments=True)


def lend_environment(course: Path) -> None:
    """Give a copy of the course the environment that runs this, so that make finds it made.

    Everything in it is a link, apart from the settings of Jupyter: what is switched there stays in the copy.
    """
    place = course / ".venv"
    place.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name not in ("etc", "made"):
            (place / entry.name).symlink_to(entry)
    shutil.copytree(Path(sys.prefix) / "etc", place / "etc")
    (place / "made").write_text(str(course), encoding="utf-8")


@contextmanager
def browser():
    """Give a Chromium.

    Raises:
        FileNotFoundError: there is none; the message says how to get it.
        ImportError: playwright is not installed.
    """
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise FileNotFoundError("no chromium found: on Debian, apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        yield browser
        browser.close()


class Lab:
    """A running server; use it in a with statement.

    Attributes:
        course (Path): the copy of the course that it serves
        started (float): when the command was given, in the seconds of time.monotonic
    """

    def __init__(self, folder: Path):
        self.course, self.settings, self.log = folder / "course", folder / "settings", folder / "lab.log"
        self.restore()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy2(ROOT / name, self.course / name)
        lend_environment(self.course)
        for name, content in SETTINGS.items():
            self.set(name, content)

    def restore(self) -> None:
        """Put the notebooks back as they are in the repository."""
        for name in ("notebooks", "exercises", "tools"):
            shutil.copytree(ROOT / name, self.course / name, dirs_exist_ok=True)

    def set(self, name: str, content: dict) -> None:
        path = self.settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        config = self.settings / "config"
        config.mkdir(parents=True, exist_ok=True)
        (config / "jupyter_lab_config.json").write_text(json.dumps(CONFIG))
        (config / "jupyter_server_config.json").write_text(json.dumps(CONFIG))
        command = [*readme_command(0), f"LAB=--no-browser --port {port}"]
        environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(self.settings), "JUPYTER_CONFIG_DIR": str(self.settings / "config")}
        with self.log.open("w") as log:
            self.started = time.monotonic()
            self.server = subprocess.Popen(command, cwd=self.course, env=environment, stdout=log, stderr=log)
        for _ in range(120):
            try:
                self._ask("api")
                return self
            except OSError:
                assert self.server.poll() is None, self.log.read_text()
                time.sleep(0.5)
        raise AssertionError(self.log.read_text())

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(20)

    def learner(self, browser) -> "Learner":
        """Return a person in front of a new page of the lab."""
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        return Learner(page, self)

    def has(self, path: str) -> bool:
        """Return True if the server answers at an address of its own."""
        try:
            self._ask(path)
        except urllib.error.HTTPError as error:
            return error.code != 404
        return True

    def _ask(self, path: str, method: str = "GET"):
        with urllib.request.urlopen(urllib.request.Request(f"{self.address}/{path}", method=method), timeout=10) as answer:
            return answer.read()

    def stop_kernels(self) -> None:
        """End all kernels, which would hold memory until the server stops."""
        for session in json.loads(self._ask("api/sessions")):
            self._ask(f"api/sessions/{session['id']}", method="DELETE")


class Learner:
    """A person in front of a page of a lab."""

    def __init__(self, page, lab: Lab):
        self.page, self.lab = page, lab

    @property
    def notebook(self):
        """The notebook in the tab that is in front."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def open(self, path: str, kernel: bool = True) -> None:
        self.page.goto(f"{self.lab.address}/lab/tree/{path}?reset")
        self.notebook.locator(".jp-Cell").first.wait_for()
        if kernel:
            self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        self.page.locator("#jp-bottom-panel").get_by_text("| Idle").wait_for()

    def choose_theme(self, theme: str) -> None:
        """Choose "light" or "dark"."""
        self.page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{THEMES[theme]}'}})")
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'")

    def run_all(self) -> None:
        self.notebook.evaluate(f"panel => panel.querySelectorAll('{PROMPT}').forEach(p => p.append(document.createElement('mark')))")
        self.page.click('li.lm-MenuBar-item:has-text("Run")')
        self.page.click('li.lm-Menu-item[data-command="runmenu:run-all"]')
        # A new count replaces the mark; [*] waits or runs.
        self.page.wait_for_function(f"() => ![...document.querySelectorAll('{PROMPT}')].some(p => p.innerHTML.match(/mark|[*]/))")

    def follow(self, text: str) -> str:
        """Click the first link with this text and return the path of the notebook that is then in front."""
        before = self.tab()
        self.notebook.locator(f'a:text-is("{text}")').first.click()
        deadline = time.monotonic() + 20
        while self.tab() == before and time.monotonic() < deadline:
            time.sleep(0.1)
        self.notebook.locator(".jp-Cell").first.wait_for()
        return self.tab()

    def tab(self) -> str:
        """Return the path of the notebook in front."""
        about = self.page.locator("#jp-main-dock-panel .lm-TabBar-tab.jp-mod-current[title*='Path: ']").first.get_attribute("title")
        return re.search(r"(?m)^Path: (.+)$", about).group(1)

    def save(self, path: str):
        """Save with the keyboard and return the notebook from disk."""
        self.page.keyboard.press("Escape")
        # The server answers when the whole file is written.
        with self.page.expect_response(lambda answer: answer.request.method == "PUT" and path in answer.url) as saved:
            self.page.keyboard.press("Control+s")
        assert saved.value.ok, saved.value.text()
        return nbformat.read(self.lab.course / path, as_version=4)

    def replace_stub(self, cell, body: list[str]) -> None:
        """Mark the first stub of a cell with the keyboard and type a body over it, line by line."""
        cell.locator('.cm-line:has-text("# YOUR CODE HERE")').first.click()
        for key in ("Home", "Shift+ArrowDown", "Shift+End", "Delete"):
            self.page.keyboard.press(key)
        self.type_lines(body)

    def answer_and_check(self) -> None:
        """Run the cell that is being edited, and the check below it."""
        for _ in range(2):
            self.page.keyboard.press("Shift+Enter")

    def type_lines(self, lines: list[str]) -> None:
        """Type lines; their indentation, relative to the first, is adjusted to what the editor puts there itself."""
        for i, line in enumerate(lines):
            if i:
                self.page.keyboard.press("Enter")
                self._indent(_spaces(line) - _spaces(lines[i - 1]), lines[i - 1])
            self.page.keyboard.type(line.lstrip())
            if self.page.locator(".jp-Completer:visible").count():
                self.page.keyboard.press("Escape")

    def _indent(self, wanted: int, before: str) -> None:
        # The editor opens a block after a colon, closes one after return, and keeps the indentation else.
        own = 4 if before.rstrip().endswith(":") else -4 if re.match(r"\s*(return|raise|pass)\b", before) else 0
        for _ in range((own - wanted) // 4):
            self.page.keyboard.press("Shift+Tab")
        for _ in range((wanted - own) // 4):
            self.page.keyboard.press("Tab")

    def verdicts(self) -> dict[str, str]:
        """Return what every check shows: exercise -> the words after its name."""
        heads = self.notebook.locator('[role="status"] strong').all_inner_texts()
        return {name: words for _, name, words in (re.match(r"(\S+) (\w+): (.*)", head).groups() for head in heads)}


def first_minute(lab: Lab, learner: Learner) -> float:
    """Return the seconds from README's command until all cells of chapter 1 have run."""
    learner.open(FIRST)
    learner.run_all()
    return time.monotonic() - lab.started


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip())
