"""Chromium, a lab and a learner for the tests in this folder."""

from contextlib import ExitStack

import pytest

from tests.browser.lab import Lab, browser
from tests.conftest import ROOT

ARTIFACTS = ROOT / "artifacts"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    with ExitStack() as stack:
        try:
            found = stack.enter_context(browser())
        except (FileNotFoundError, ImportError) as missing:
            pytest.skip(str(missing))
        yield found


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def learner(chromium, lab):
    lab.restore()
    learner = lab.learner(chromium)
    yield learner
    learner.page.close()
    lab.stop_kernels()


@pytest.fixture(scope="session")
def artifacts():
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS
