"""README, CONTRIBUTING and docs say what is: links, counts, and nothing of anyone's machine."""

import importlib.util
import re
import shlex
import subprocess

import pytest

from tests.answers import right_answers, wrong_answers
from tests.conftest import ROOT, load, notebook_paths
from tools import lab, plan

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


def test_what_teachers_plan_with_is_that_of_the_notebooks():
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    assert plan.points() in text and plan.weeks() in text


def test_a_chapter_promises_the_minutes_of_its_exercises():
    said = {path.name: plan.minutes()[int(path.name[:2])][1] for path in notebook_paths("solutions")}
    for path in notebook_paths("solutions"):
        asked = sum(int(n) for cell in load(path).cells for n in re.findall(r"\*(?:Easy|Medium|Hard), (\d+) minutes\.\*", cell.source))
        assert abs(said[path.name] - asked) < 5, (path.name, said[path.name], asked)


def test_the_long_plans_hold_every_chapter_once():
    for title, (_, parts) in plan.PLANS.items():
        chapters = [chapter for part in parts for chapter in part]
        assert chapters == (sorted(plan.minutes()) if "whole" in title else sorted(set(chapters)))


def test_the_map_names_every_notebook():
    for text in ((ROOT / "README.md").read_text(encoding="utf-8"), "\n".join(c.source for c in load(ROOT / "notebooks" / "00_start_here.ipynb").cells)):
        for path in notebook_paths("notebooks")[1:]:
            assert path.name in text


def commands(page):
    """Return every command of a page that is the course's own, in words, from its blocks and from its running text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?s)```\w*\n(.*?)```", text)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", text))
    words = [shlex.split(line.replace("\\", "/"), comments=True) for line in lines if OWN.match(line)]
    return [[word for word in line if not re.match(r"[A-Z_]+=", word) or word.startswith("LAB=")] for line in words]


OWN = re.compile(r"([A-Z_]+=\S+ )*(make|(\.venv[/\\](bin|Scripts)[/\\])?python3?|py) \S")


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_can_be_given(page, monkeypatch):
    monkeypatch.setattr(lab, "port_number", int)  # whether it is free says nothing of the page
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for program, *words in commands(page):
        options = [word for word in words if word.startswith("LAB=")]
        words = [word for word in words if word not in options and word != "-3"]
        if program == "make":
            assert words[0] in targets, (page, words)
        elif words[0] == "-m":
            assert importlib.util.find_spec(words[1]), (page, words)
        else:
            assert (ROOT / words[0]).is_file(), (page, words)
        for option in options:
            lab.arguments(shlex.split(option.removeprefix("LAB=")))


def test_the_pages_hold_commands():
    assert {tuple(words) for words in commands("README.md")} >= {
        ("make", "lab"), ("make", "lab", "LAB=--port 9000"), ("py", "-3", "tools/make_env.py"), ("python", "tools/teacher.py", "off")
    }


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
