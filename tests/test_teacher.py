"""nbgrader shown and hidden, in an environment whose settings are a copy."""

import json
import subprocess

import pytest

from tests.browser.lab import lend_environment
from tests.conftest import ROOT
from tools import teacher

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e '.[teach]'")


@pytest.fixture
def environment(tmp_path):
    lend_environment(tmp_path)
    return tmp_path / ".venv"


def give(environment, word):
    command = [environment / "bin" / "python", ROOT / "tools" / "teacher.py", word]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def settings(environment):
    """Return whether the part in the page is switched off, and the parts of the server that are on."""
    etc = environment / "etc" / "jupyter"
    page = json.loads((etc / "labconfig" / "page_config.json").read_text())
    server = {}
    for path in sorted((etc / "jupyter_server_config.d").glob("*.json")):  # a later name wins, as in Jupyter
        server |= json.loads(path.read_text())["ServerApp"]["jpserver_extensions"]
    return page.get("disabledExtensions", {}).get(teacher.EXTENSION, False), {name for name in teacher.SERVER if server[name]}


def test_on_and_off(environment):
    assert give(environment, "on") == "nbgrader is shown in JupyterLab. Start it anew to see that.\n"
    assert settings(environment) == (False, set(teacher.SERVER))
    assert give(environment, "off") == "nbgrader is hidden in JupyterLab. Start it anew to see that.\n"
    assert settings(environment) == (True, set())


@pytest.mark.parametrize("words", [[], ["maybe"], ["on", "off"]])
def test_other_words_change_nothing(words, capsys, monkeypatch):
    monkeypatch.setattr(teacher, "switch", None)
    assert teacher.main(words) == 1
    assert capsys.readouterr().out == "Say which: python tools/teacher.py on, or off.\n"


def test_settings_that_cannot_be_written_are_said(capsys, monkeypatch):
    def refuse(on):
        raise PermissionError(13, "Permission denied", "/opt/env/etc")

    monkeypatch.setattr(teacher, "switch", refuse)
    assert teacher.main(["on"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("The environment's settings cannot be written:") and "/opt/env/etc" in said and "Ask whoever owns" in said
