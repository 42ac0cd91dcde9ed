"""The environment: files that agree, an import that is cheap, and a report that says what is wrong."""

import re
import subprocess
import sys
import tomllib

import pytest
import torch

from mha_lib import environment, get_device, requirements
from tests.conftest import ROOT

CONDA_NAMES = {"torch": "pytorch"}


def ranges(requirements):
    return dict(re.fullmatch(r"([A-Za-z0-9_.-]+)\s*(.*)", r).groups() for r in requirements)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def conda_lines():
    return re.findall(r"(?m)^  - ([^:\n]+)$", (ROOT / "environment.yml").read_text(encoding="utf-8"))


def test_conda_and_pip_ask_for_the_same():
    conda = ranges(line for line in conda_lines() if line not in ("pip", "conda-forge"))
    pip = ranges(project()["dependencies"] + [x for extra in ("teach", "real") for x in project()["optional-dependencies"][extra]])
    wanted = {CONDA_NAMES.get(name, name): bounds for name, bounds in pip.items()}
    wanted["python"] = project()["requires-python"]
    assert conda == wanted


def test_conda_uses_conda_forge_alone_and_installs_the_checkout():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert re.search(r"(?m)^channels:\n  - conda-forge\n\w", text)
    assert "--editable ." in text


def test_constraints_are_exact_and_lie_in_the_ranges():
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for extra in ([], *project()["optional-dependencies"].values()):
        for text in extra:
            requirement = Requirement(text)
            assert requirement.specifier.contains(pins[requirement.name.lower()]), text
    for text in project()["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


def test_import_brings_no_matplotlib():
    code = "import sys, mha_lib; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_device_follows_the_variable(monkeypatch):
    monkeypatch.setenv("MHA_DEVICE", "cpu")
    assert get_device() == torch.device("cpu")
    monkeypatch.delenv("MHA_DEVICE")
    assert get_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_named(monkeypatch, name):
    monkeypatch.setenv("MHA_DEVICE", name)
    with pytest.raises(ValueError, match=f"MHA_DEVICE='{name}'.*Unset it"):
        get_device()


def test_report_says_ok(capsys, monkeypatch):
    monkeypatch.delenv("MHA_DEVICE", raising=False)
    environment.report()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("[ok]") for line in (*lines[:4], lines[5]))


def test_report_names_a_wrong_device_and_an_old_torch(capsys, monkeypatch):
    monkeypatch.setenv("MHA_DEVICE", "nonsense")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    assert environment.report() is False
    out = capsys.readouterr().out
    assert "[!!] torch 2.5.1; the course needs 2.6 or newer" in out
    assert "[!!] device: MHA_DEVICE='nonsense'" in out


def test_report_says_that_answers_cannot_be_saved(capsys, monkeypatch):
    monkeypatch.setattr(environment.os, "access", lambda path, mode: False)
    assert environment.report() is False
    assert "[!!] folder:" in capsys.readouterr().out


def without_torch(code):
    """Run code in a Python that finds no torch."""
    hidden = "import sys; sys.modules['torch'] = None; import importlib.util as u; found = u.find_spec; "
    hidden += "u.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a); "
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)


def test_a_missing_torch_is_said_in_one_line():
    done = without_torch("import mha_lib")
    assert done.stderr.splitlines()[-1].startswith("ImportError: this Python has no PyTorch. In the course's folder run make env")


def test_a_file_that_hides_torch_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("")
    done = subprocess.run([sys.executable, "-c", "import torch, mha_lib"], cwd=tmp_path, capture_output=True, text=True)
    hidden = f"ImportError: {tmp_path / 'torch.py'} hides the package torch. Give the file another name, then restart the kernel"
    assert done.stderr.splitlines()[-1] == hidden


def test_an_old_torch_is_said_when_the_course_is_imported(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.warns(UserWarning, match=r"torch 2\.5\.1\+cpu is too old: the course needs 2\.6 or newer\. Run make env"):
        requirements.check()


def test_every_pin_installs_on_the_oldest_python():
    """A patch release of the oldest Python that the course asks for may be years old."""
    import importlib.metadata

    from packaging.specifiers import SpecifierSet

    oldest = re.search(r">=([\d.]+)", project()["requires-python"])[1] + ".0"
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        try:
            about = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not line.startswith("#") and about["Version"].split("+")[0] == version and about["Requires-Python"]:
            assert oldest in SpecifierSet(about["Requires-Python"]), f"{line} asks for Python {about['Requires-Python']}"
