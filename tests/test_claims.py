"""A number in a chapter's text is one that a cell of the same chapter shows, or sets.

Numbers written as words, and which number belongs to which claim, are for readers: no machine knows.
"""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ROOT, code_cells, each_notebook, load, texts

# What stands in a text although no cell prints or sets it: notebook, number, and why it may.
ALLOWED = {
    "02_scaling": {"22.6": "the root of 512, worked out in the sentence"},
    "08_trained_heads": {"2.77": "ln 16, which chapter 2 prints"},
    "09_positions": {"6.3": "one turn, two pi", "46": "all but the first two of 48 places"},
    "10_decoding": {"15": "1 + 2 + 3 + 4 + 5 of the cells in the picture"},
}
SMALL = 12  # whole numbers up to here are mostly counts, places and heads, said in passing
NUMBER = re.compile(r"(?<![\w.,^_{/-])[-−]?(\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(\.\d+)?(?![\w]|,\d|\.\d)")
NOT_A_CLAIM = (
    r"(?s)```.*?```",  # code, with its shapes and settings
    r"`[^`]*`",
    r"\]\([^)]*\)",  # addresses
    r"(?i)\b(chapter|exercise|section|footnote|part)s? \d+(\.\d+)*( (and|to) \d+)?",
    r"(?m)^#+ \d+ ·",
    r"\b\d+(-| )bits?\b",
    r"\b(19|20)\d\d\b",  # years
    r"\*Reading: [^*]*\*",
)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as they are written."""
    return [m.group().strip() for m in NUMBER.finditer(text) if m.group(1) or m.group(2)]


def claims(notebook) -> list[str]:
    """Return the numbers that the text of a notebook names, without its last cell, which points elsewhere."""
    found = []
    for cell in notebook.cells[:-1]:
        if cell.cell_type == "markdown":
            text = cell.source
            for pattern in NOT_A_CLAIM:
                text = re.sub(pattern, " ", text)
            found += numbers(text)
    return found


def value(written: str) -> float:
    return abs(float(written.replace(",", "").replace("−", "-")))


def shown(notebook) -> list[float]:
    """Return the numbers of all stored outputs and of all code."""
    text = "\n".join(t for cell in code_cells(notebook) for t in (*texts(cell), cell.source))
    return [abs(float(n.replace("_", "").replace(",", ""))) for n in re.findall(r"\d{1,3}(?:[,_]\d{3})+|\d*\.?\d+(?:e[-+]?\d+)?", text)]


def is_shown(claim: str, found: list[float]) -> bool:
    """Ask whether one of the numbers, rounded as the claim is, gives the claim; a percentage may stand as a fraction."""
    digits = len(claim.partition(".")[2])
    half = 0.5 * 10.0**-digits * (1 + 1e-6)
    if not digits:
        return any(abs(n - value(claim)) < 1e-9 or abs(100 * n - value(claim)) < half for n in found)
    return any(abs(n - value(claim)) <= half for n in found)


def unsupported(notebook) -> set[str]:
    found = shown(notebook)
    return {c for c in claims(notebook) if ("." in c or value(c) > SMALL) and not is_shown(c, found)}


@each_notebook("notebooks")
def test_every_number_in_the_text_is_shown_or_set_by_a_cell(path):
    missing = unsupported(load(path)) - set(ALLOWED.get(path.stem, {}))
    assert not missing, f"{path.name}: no cell shows {', '.join(sorted(missing))}"


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_still_needed(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    if not path.exists():
        pytest.skip("this chapter is not written yet")
    notebook = load(path)
    assert all(ALLOWED[name].values())
    needless = set(ALLOWED[name]) - unsupported(notebook)
    assert not needless, f"{name}: shown by a cell by now, or gone from the text: {needless}"


@pytest.mark.parametrize(
    "text, missing",
    [
        ("Token 0 keeps .963, or 96 % of itself.", set()),
        ("Token 0 keeps .953 of itself.", {".953"}),
        ("Token 0 keeps 0.9626 of itself.", {"0.9626"}),
        ("The largest of 2,000 draws.", set()),
        ("The largest of 3,000 draws, see chapter 14.", {"3,000"}),
        ("It falls to −4.2, in `float64` and in 32-bit floats.", set()),
    ],
)
def test_the_mechanism_finds_a_wrong_number(text, missing):
    cell = new_code_cell("draws = 2_000", outputs=[new_output("stream", text="kept 0.9630, loss -4.21\n")])
    notebook = new_notebook(cells=[new_markdown_cell(text), cell, new_markdown_cell("The end.")])
    assert unsupported(notebook) == missing
