"""The GPU on paper refuses what a GPU refuses, and shows what depends on the device."""

import json
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import ROOT
from tools import robust
from tools.notebooks import execute, normalise

CASES = {
    "print(x)": "device='cuda:0'",
    "print(x.device, (x + 1).device, torch.zeros(2, device='cuda').device, x.cpu().device)": "cuda:0 cuda:0 cuda:0 cpu",
    "print(x.numpy())": "TypeError: can't convert cuda:0",
    "print(x + torch.ones(2, 3))": "RuntimeError: Expected all tensors to be on the same device",
    "print(torch.nn.Linear(3, 2)(x))": "RuntimeError: Expected all tensors to be on the same device",
    "torch.randn(2, generator=torch.Generator(), device='cuda')": "RuntimeError: Expected a 'cuda' device type for generator",
    "print((x + torch.tensor(1.0)).sum().item(), x.cpu().numpy().shape)": "12.0 (2, 3)",
    "print(f'{x.mean():.2f} of {x.sum()}')": "1.00 of 6.0",
    "import copy; from torch import nn\n"
    "layer = copy.deepcopy(nn.Linear(3, 1).to('cuda'))\n"
    "loss = layer(x).sum(); loss.backward()\n"
    "print(loss.device, layer.weight.grad.device, isinstance(layer.weight, nn.Parameter))": "cuda:0 cuda:0 True",
}
RUN_ALL = f"""
import contextlib, io, json
import torch
from tools import stand_in_device

stand_in_device.install()

def said(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(code, {{"torch": torch, "x": torch.ones(2, 3).to("cuda")}})
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}")
    return out.getvalue()

print(json.dumps([said(code) for code in {list(CASES)!r}]))
"""


@pytest.fixture(scope="module")
def said():
    """What each case prints, or raises, in a process of its own for all of them: the stand-in stays till its end."""
    done = subprocess.run([sys.executable, "-c", RUN_ALL], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("code", CASES)
def test_it_behaves_like_a_device(said, code):
    assert CASES[code] in said[code]


def test_it_would_be_seen_in_a_notebook(tmp_path):
    """A cell that prints a tensor as it is does not agree there; one that prints words does."""
    begin = "import torch\nfrom mha_lib import get_device\nx = torch.ones(2).to(get_device())"
    cells = [new_code_cell(source) for source in (begin, "print(x)", "print(tuple(x.shape), x.sum().item())")]
    notebook = normalise(execute(new_notebook(cells=cells), tmp_path))
    robust.begin_with(robust.ON_PAPER)(notebook)
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "one.ipynb")
    (tmp_path / "nbval_sanitize.cfg").write_text((ROOT / "tests" / "nbval_sanitize.cfg").read_text())
    found = robust.validate(tmp_path, {"MHA_DEVICE": "cuda"}, folders=["notebooks"])
    assert found == "notebooks/one.ipynb::Cell 1"
