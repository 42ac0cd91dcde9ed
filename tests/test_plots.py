"""The pictures: drawn from whatever holds the numbers, and refused where the names do not fit."""

import warnings

import pytest
import torch

from mha_lib import plots


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """Count the pictures in place of showing them; a warning is an error."""
    count = []
    monkeypatch.setattr(plots.plt, "show", lambda: count.append(plots.plt.get_fignums()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield count
    plots.plt.close("all")


TABLE = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
DRAWN = {
    "attention_map": lambda t: plots.attention_map(t, ["a", "b"]),
    "heat": lambda t: plots.heat([t], "x", "y", ["t"]),
    "heads": lambda t: plots.heads({"t": t}),
    "mixture": lambda t: plots.mixture(t, t[0], ["a", "b"], ["x", "y"]),
    "histograms": lambda t: plots.histograms({"t": t}, "x"),
    "masks": lambda t: plots.masks([t], ["a", "b"], ["a", "b"], ["t"]),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_draws_what_needs_gradients_in_any_dtype(name, dtype, shown):
    assert DRAWN[name](TABLE.to(dtype).requires_grad_()) is None
    assert len(shown) == 1


@pytest.mark.parametrize("name", DRAWN)
def test_it_draws_wherever_new_tensors_go_by_default(name, shown):
    with torch.device("meta"):
        DRAWN[name](TABLE)
    assert len(shown) == 1


def test_lists_are_drawn_too(shown):
    with torch.device("meta"):
        plots.attention_map(TABLE.tolist(), ["a", "b"])
    assert len(shown) == 1


def test_names_that_do_not_fit_are_counted():
    with pytest.raises(ValueError, match=r"a table of shape \(2, 2\) needs as many names: got 3 for the queries and 3 for the keys"):
        plots.attention_map(TABLE, ["a", "b", "c"])
