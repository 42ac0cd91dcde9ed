"""The learner's path in a real browser: JupyterLab is started, notebooks are run, answers are typed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

from tests.conftest import ROOT, code_cells, texts

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium found: on Debian, apt-get install chromium"),
]

SETTINGS = {
    # Every cell stays in the page, also those out of sight.
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab over a copy of the course; gives its address and its folder."""
    folder = tmp_path_factory.mktemp("lab")
    course, settings = folder / "course", folder / "settings"
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, course / name)
    for name, content in SETTINGS.items():
        path = settings / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={course}"]
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTER_CONFIG_DIR": str(folder / "config")}
    log = (folder / "lab.log").open("w")
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", *arguments], env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=1)
                break
            except OSError:
                assert server.poll() is None, (folder / "lab.log").read_text()
                time.sleep(0.5)
        yield address, course
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    yield page
    page.close()


def open_notebook(page, lab, path):
    page.goto(f"{lab[0]}/lab/tree/{path}?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')


def run_all(page):
    page.click('li.lm-MenuBar-item:has-text("Run")')
    page.click('li.lm-Menu-item[data-command="runmenu:run-all"]')
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="busy"]', timeout=10_000)
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')


def save(page, lab, path):
    """Save and return the notebook from disk."""
    file = lab[1] / path
    before = file.stat().st_mtime_ns
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    deadline = time.monotonic() + 20
    while file.stat().st_mtime_ns == before and time.monotonic() < deadline:
        time.sleep(0.1)
    return nbformat.read(file, as_version=4)


def type_answer(page, function, lines):
    """Replace the stub of a function by lines, as a learner does, and run the cell and its check."""
    cell = page.locator(f'.jp-CodeCell:has(.cm-line:has-text("def {function}("))').first
    stub = cell.locator('.cm-line:has-text("# YOUR CODE HERE")')
    stub.click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+End")
    page.keyboard.press("Delete")
    for i, line in enumerate(lines):
        if i:
            page.keyboard.press("Enter")
        page.keyboard.type(line)
        page.keyboard.press("Escape") if page.locator(".jp-Completer:visible").count() else None
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    return cell.locator("xpath=following::div[contains(@class, 'jp-CodeCell')][1]")


def test_chapter_1_runs_without_an_error(page, lab):
    path = "notebooks/01_single_head_attention.ipynb"
    open_notebook(page, lab, path)
    run_all(page)
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    stored = save(page, lab, path)
    assert all(cell.execution_count for cell in code_cells(stored))
    assert not [o for cell in code_cells(stored) for o in cell.outputs if o.output_type == "error"]


def test_a_right_and_a_wrong_answer_are_told_apart(page, lab):
    path = "exercises/01_single_head_attention.ipynb"
    open_notebook(page, lab, path)
    run_all(page)
    page.wait_for_selector("text=not attempted yet")
    right = type_answer(page, "scores", ["return query @ key.transpose(-2, -1)"])
    wrong = type_answer(
        page,
        "attention",
        ["scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5", "weights = scores.softmax(dim=-2)", "return weights @ value, weights"],
    )
    playwright.expect(right.locator('[role="status"]')).to_contain_text("scores: passed")
    verdict = wrong.locator('[role="status"]')
    playwright.expect(verdict).to_contain_text("attention: not yet")
    playwright.expect(verdict).to_contain_text("down the columns")
    stored = save(page, lab, path)
    said = "\n".join(text for cell in code_cells(stored) for text in texts(cell))
    assert "scores   passed" in said and "attention   not yet" in said and "single_head   not attempted yet" in said
