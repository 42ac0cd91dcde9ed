"""The numbers that chapters 6, 7 and 8 show. The spellings themselves stand in test_spellings.py."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import MultiHeadAttention, attention, cost
from mha_lib.experiments import lookups


def test_the_gradient_of_the_key_bias_is_rounding_alone():
    torch.manual_seed(0)
    layer = MultiHeadAttention(512, 8)
    x = torch.randn(2, 10, 512, generator=torch.Generator().manual_seed(1))
    layer(x, x, x).pow(2).sum().backward()
    key, query, value = (getattr(layer, f"w_{r}").bias.grad.abs().max() for r in "kqv")
    assert value > query > 1e4 * key


@pytest.mark.parametrize("sizes", [(2, 32, 64, 4), (1, 100, 24, 3), (3, 7, 12, 12)])
def test_multiplications_are_those_that_torch_counts(sizes):
    batch, length, d_model, num_heads = sizes
    layer, x = MultiHeadAttention(d_model, num_heads), torch.randn(batch, length, d_model)
    with FlopCounterMode(display=False) as counter:
        layer(x, x, x)
    assert counter.get_total_flops() == 2 * sum(cost.multiplications(batch, length, d_model).values())


def test_tables_catch_up_at_twice_the_width():
    at = cost.multiplications(1, 1024, 512)
    assert at["tables"] == at["projections"]


def test_peak_memory_by_hand_and_fused():
    peaks = {}
    for length in (512, 1024):
        q = torch.randn(1, 8, length, 64)
        peaks["hand", length] = cost.peak_mib(lambda: attention(q, q, q)[0])
        peaks["fused", length] = cost.peak_mib(lambda: F.scaled_dot_product_attention(q, q, q))
    table = cost.table_bytes(1, 8, 1024) / 2**20
    assert table == 32
    assert 2 * table <= peaks["hand", 1024] <= 3 * table
    assert peaks["hand", 1024] > 3.5 * peaks["hand", 512]
    assert peaks["fused", 1024] < table / 4


def test_memory_without_weights_grows_in_proportion_with_masks_too():
    layer = MultiHeadAttention(64, 8)
    peaks = []
    for length in (1024, 2048):
        x = torch.randn(1, length, 64)
        mask = torch.ones(1, 1, length, dtype=torch.bool)
        with torch.no_grad():
            peaks.append(cost.peak_mib(lambda: layer(x, x, x, mask, need_weights=False)))
    assert peaks[1] < 2.5 * peaks[0]


@pytest.fixture(scope="module")
def trained():
    return {
        heads: [lookups.train(32, heads, seed=s, steps=600, rate=1e-2, stop_at=0.001)[0] for s in range(5, 8)]
        for heads in (1, 2, 4)
    }


def test_one_head_answers_one_question(trained):
    for model in trained[1]:
        better, other = sorted(lookups.accuracy(model), reverse=True)
        assert better > 0.85 and other < 0.35


@pytest.mark.parametrize("heads", [2, 4])
def test_more_heads_answer_both(trained, heads):
    both = [min(lookups.accuracy(model)) > 0.99 for model in trained[heads]]
    assert sum(both) >= 2


def test_each_head_looks_at_one_place_and_carries_one_question(trained):
    model = next(m for m in trained[2] if min(lookups.accuracy(m)) > 0.99)
    with torch.no_grad():
        model(lookups.draw(256, torch.Generator().manual_seed(1)))
    weights, here = model.attention.attn.mean(0), torch.arange(12)
    looks = torch.tensor([[weights[h, here, (here - b) % 12].mean() for b in (1, 2)] for h in range(2)])
    assert sorted(looks.argmax(1).tolist()) == [0, 1] and (looks.amax(1) > 0.95).all()
    for head in range(2):
        with torch.no_grad():
            kept = model.attention.w_o.weight.clone()
            model.attention.w_o.weight[:, 16 * head : 16 * (head + 1)] = 0
            lost = lookups.accuracy(model)
            model.attention.w_o.weight.copy_(kept)
        question = int(looks[head].argmax())
        assert lost[question] < 0.3 and lost[1 - question] > 0.9


def test_all_head_counts_have_the_same_parameters():
    assert len({sum(p.numel() for p in lookups.Lookups(32, h).parameters()) for h in (1, 2, 4)}) == 1
