"""The GPU on paper refuses what a GPU refuses, and shows what depends on the device."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools import robust

BEGIN = "import torch\nfrom tools import stand_in_device\nstand_in_device.install()\nx = torch.ones(2, 3).to('cuda')\n"


def said(code):
    done = subprocess.run([sys.executable, "-c", BEGIN + code], cwd=ROOT, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print(x)", "device='cuda:0'"),
        ("print(x.device, (x + 1).device, torch.zeros(2, device='cuda').device, x.cpu().device)", "cuda:0 cuda:0 cuda:0 cpu"),
        ("print(x.numpy())", "TypeError: can't convert cuda:0"),
        ("print(x + torch.ones(2, 3))", "RuntimeError: Expected all tensors to be on the same device"),
        ("print(torch.nn.Linear(3, 2)(x))", "RuntimeError: Expected all tensors to be on the same device"),
        ("torch.randn(2, generator=torch.Generator(), device='cuda')", "RuntimeError: Expected a 'cuda' device type for generator"),
        ("print((x + torch.tensor(1.0)).sum().item(), x.cpu().numpy().shape)", "12.0 (2, 3)"),
        (
            "import copy; from torch import nn\nlayer = copy.deepcopy(nn.Linear(3, 1).to('cuda'))\n"
            "loss = layer(x).sum(); loss.backward(); print(loss.device, layer.weight.grad.device, isinstance(layer.weight, nn.Parameter))",
            "cuda:0 cuda:0 True",
        ),
    ],
)
def test_it_behaves_like_a_device(code, words):
    assert words in said(code)


def test_it_would_be_seen_in_a_notebook(tmp_path):
    """A cell that prints a tensor as it is does not agree there; one that prints words does."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    from tools.notebooks import execute, normalise

    begin = "import torch\nfrom mha_lib import get_device\nx = torch.ones(2).to(get_device())"
    (tmp_path / "notebooks").mkdir()
    for name, last in (("leaks", "print(x)"), ("holds", "print(tuple(x.shape), x.sum().item())")):
        notebook = normalise(execute(new_notebook(cells=[new_code_cell(begin), new_code_cell(last)]), tmp_path))
        robust.begin_with(robust.ON_PAPER)(notebook)
        nbformat.write(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
    (tmp_path / "nbval_sanitize.cfg").write_text((ROOT / "tests" / "nbval_sanitize.cfg").read_text())
    found = robust.validate(tmp_path, {"MHA_DEVICE": "cuda"}, folders=["notebooks"])
    assert "leaks" in found and "holds" not in found
