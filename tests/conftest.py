"""What several tests share."""

import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "solutions", "exercises")


def notebook_paths(*folders: str) -> list[Path]:
    return [path for folder in folders or FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]


def each_notebook(*folders: str):
    """Parametrise a test over notebooks, named folder/file."""
    paths = notebook_paths(*folders)
    return pytest.mark.parametrize("path", paths, ids=[str(p.relative_to(ROOT)) for p in paths])


def load(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def texts(cell) -> list[str]:
    """Return every text that a code cell has stored as output."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        else:
            found += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return found


def seeded_randn(*shape, seed: int, dtype=None):
    """Return normal numbers on the CPU, the same ones in every dtype but for rounding."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype or torch.float32)


def relative(got, want) -> float:
    """Return the largest difference in units of the largest number wanted."""
    return float((got - want).detach().abs().max() / want.detach().abs().max())


def missing_model() -> str:
    """Return why what needs the real model cannot run here, or ""."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install -e '.[real]'"
    from mha_lib import real_model

    try:
        real_model.folder()
    except real_model.ModelMissing as missing:
        return str(missing)
    return ""


needs_real_model = pytest.mark.skipif(bool(missing_model()), reason=missing_model())
