"""The numbers that chapter 2 shows."""

import math

import pytest
import torch

from mha_lib.experiments import lookups


@pytest.fixture(scope="module")
def drawn():
    """The scores of chapter 2, in the order in which it draws them."""
    generator = torch.Generator().manual_seed(0)
    torch.randn(1, 3, 4, generator=generator)
    dots = {}
    for d_k in (4, 64, 512):
        q, k = torch.randn(10_000, d_k, generator=generator), torch.randn(10_000, d_k, generator=generator)
        dots[d_k] = (q * k).sum(-1)
    query, keys = torch.randn(1, 512, generator=generator), torch.randn(10, 512, generator=generator)
    return dots, query @ keys.T


def test_spread_is_the_root_of_the_width(drawn):
    spread = {d: float(s.std()) for d, s in drawn[0].items()}
    assert [round(s, 2) for s in spread.values()] == [2.00, 8.11, 22.85]
    assert [round(s / math.sqrt(d), 2) for d, s in spread.items()] == [1.00, 1.01, 1.01]
    assert all(abs(s / math.sqrt(d) - 1) < 0.03 for d, s in spread.items())


def test_the_largest_of_ten_weights(drawn):
    scores = drawn[1]
    assert float(scores.softmax(-1).max()) == pytest.approx(0.652, abs=1e-3)
    assert float((scores / 512**0.5).softmax(-1).max()) == pytest.approx(0.213, abs=1e-3)


def test_entropy_and_jacobian_by_width():
    generator = torch.Generator().manual_seed(0)
    entropy, size = {}, {}
    for d in (4, 16, 64, 256, 1024):
        q, k = torch.randn(2000, 1, d, generator=generator), torch.randn(2000, 10, d, generator=generator)
        scores = (q @ k.transpose(-2, -1))[:, 0]
        for name, s in (("plain", scores), ("divided", scores / d**0.5)):
            p = s.softmax(-1)
            entropy[name, d] = float(-(p * p.clamp_min(1e-30).log()).sum(-1).mean())
            size[name, d] = float((torch.diag_embed(p) - p[..., None] * p[..., None, :]).norm(dim=(-2, -1)).mean())
    assert entropy["plain", 4] == pytest.approx(1.43, abs=0.01) and entropy["plain", 1024] == pytest.approx(0.09, abs=0.01)
    assert all(1.91 < entropy["divided", d] < 1.95 for d in (4, 16, 64, 256, 1024))
    assert size["plain", 4] == pytest.approx(0.34, abs=0.01) and size["plain", 1024] == pytest.approx(0.05, abs=0.01)
    assert all(0.335 < size["divided", d] < 0.355 for d in (4, 16, 64, 256, 1024))


def test_training_with_and_without_the_division():
    def lengths(factor):
        runs = [
            lookups.train(128, 2, seed=s, steps=200, rate=3e-3, stop_at=0.02, query_factor=factor)[1] for s in range(5, 10)
        ]
        return sorted(len(r) for r in runs), sum(r[-1] < 0.02 for r in runs)

    divided, plain = lengths(1.0), lengths(8.0)
    assert divided[1] >= 4 and plain[1] <= 3
    assert divided[0][2] < plain[0][2]


def test_lookups_recall_one_and_two_back():
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert lookups.targets(tokens)[0].tolist() == [[8, 7], [5, 8], [6, 5], [7, 6]]


def test_training_leaves_the_generators_alone():
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    lookups.train(8, 1, seed=0, steps=1, rate=1e-3)
    assert torch.rand(1) == want
