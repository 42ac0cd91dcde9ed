"""README, CONTRIBUTING and docs say what is: links, counts, and nothing of anyone's machine."""

import re
import subprocess

import pytest

from tests.answers import right_answers, wrong_answers
from tests.conftest import ROOT, load, notebook_paths

PAGES = ["README.md", "CONTRIBUTING.md", "docs/teaching.md", "benchmarks/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), target


def test_the_report_in_the_readme_counts_what_the_tests_hold():
    wrong, right = wrong_answers(), right_answers()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {}
    for answer in wrong + right:
        row = rows.setdefault(answer.check, [0, 0])
        row[answer.mistake is None] += 1
    for check, (w, r) in rows.items():
        assert f"| `{check}` | {w} | {w} | {w} | {r} | 0 |" in text
    assert f"| all | {len(wrong)} | {len(wrong)} | {len(wrong)} | {len(right)} | 0 |" in text


def test_the_points_for_teachers_are_those_of_the_notebooks():
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    for path in notebook_paths("solutions"):
        cells = [c.metadata.get("nbgrader", {}) for c in load(path).cells]
        points = [c.points for c in cells if c.get("grade")]
        assert f"| {int(path.name[:2])} | {len(points)} | {sum(points)} |" in text


def test_the_map_names_every_notebook():
    for text in ((ROOT / "README.md").read_text(encoding="utf-8"), "\n".join(c.source for c in load(ROOT / "notebooks" / "00_start_here.ipynb").cells)):
        for path in notebook_paths("notebooks")[1:]:
            assert path.name in text


def test_make_targets_of_the_pages_exist():
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for page in PAGES:
        for target in re.findall(r"(?m)(?:^|`)make ([a-z]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert target in targets, (page, target)


def test_nothing_of_a_machine_or_a_registry_is_named():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = "|".join(re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("deb", "debian", "org"), ("conda", "anaconda", "org")))
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".png",) or not path.is_file():
            continue
        text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
        assert not re.search(hosts, text), name
        assert not re.search(r"/(home|work|root)/\w", text), name


def test_the_public_address_is_one_placeholder_in_one_place():
    """Whoever publishes the course fills it in there, and nothing else needs it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    placeholder = "OWNER" + "/REPO"
    holding = [name for name in listed.stdout.split() if (ROOT / name).suffix != ".png" and placeholder in (ROOT / name).read_text(encoding="utf-8")]
    assert holding == ["README.md"]
